#include "models/parameter_specs.h"

namespace retort::models {
namespace {

void add_layer(std::vector<ParameterSpec>& specs, const ModelConfig& config, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t q_size = config.num_attention_heads * config.head_dim;
  const int64_t kv_size = config.num_key_value_heads * config.head_dim;
  auto norm = [&](const std::string& name, int64_t size) {
    specs.push_back({prefix + name + ".weight", {size}, ParameterKind::kNorm});
  };
  auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    specs.push_back({prefix + name + ".weight", {out, in}, ParameterKind::kMatrix});
    if (bias) specs.push_back({prefix + name + ".bias", {out}, ParameterKind::kBias});
  };
  norm("input_layernorm", hidden);
  linear("self_attn.q_proj", q_size, hidden, config.attention_bias);
  linear("self_attn.k_proj", kv_size, hidden, config.attention_bias);
  linear("self_attn.v_proj", kv_size, hidden, config.attention_bias);
  if (config.qk_norm) {
    norm("self_attn.q_norm", config.head_dim);
    norm("self_attn.k_norm", config.head_dim);
  }
  linear("self_attn.o_proj", hidden, q_size, config.attention_out_bias);
  norm("post_attention_layernorm", hidden);
  linear("mlp.gate_proj", inner, hidden, config.mlp_bias);
  linear("mlp.up_proj", inner, hidden, config.mlp_bias);
  linear("mlp.down_proj", hidden, inner, config.mlp_bias);
}

}  // namespace

std::vector<ParameterSpec> parameter_specs(const ModelConfig& config) {
  std::vector<ParameterSpec> specs;
  specs.push_back({"model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, ParameterKind::kMatrix});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) add_layer(specs, config, layer);
  specs.push_back({"model.norm.weight", {config.hidden_size}, ParameterKind::kNorm});
  if (!config.tie_word_embeddings) {
    specs.push_back({"lm_head.weight", {config.vocab_size, config.hidden_size}, ParameterKind::kMatrix});
  }
  return specs;
}

int64_t ModelConfig::num_parameters() const {
  int64_t total = 0;
  for (const ParameterSpec& spec : parameter_specs(*this)) {
    int64_t size = 1;
    for (int64_t dim : spec.shape) size *= dim;
    total += size;
  }
  return total;
}

}  // namespace retort::models
