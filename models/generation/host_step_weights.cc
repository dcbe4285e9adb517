// How the forward of generation on the CPU takes over a decoder's weights.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "models/generation/host_step_model.h"

namespace retort::models {
namespace {

constexpr int64_t kAlign = 16;  // the dimension of a head's values is rounded up to this

int64_t padded(int64_t dim) { return (dim + kAlign - 1) / kAlign * kAlign; }

// What a norm multiplies by, in fp32; undefined stays so.
at::Tensor norm_weight(const at::Tensor& weight, const ModelConfig& config) {
  if (!weight.defined()) return weight;
  const at::Tensor wide = weight.to(at::kFloat).contiguous();
  return config.norm_unit_offset ? wide + 1 : wide;
}

}  // namespace

HostStepModel::HostStepModel(const Decoder& decoder, int64_t num_blocks, int64_t block_tokens)
    : StepModel(decoder, block_tokens),
      ranks_(decoder.placement().tp),
      padded_dim_(padded(config_.head_dim)) {
  bind(decoder);
  const c10::InferenceMode inference;
  const auto options = at::TensorOptions().dtype(at::kFloat);
  for (Layer& layer : layers_) {
    layer.keys = at::empty({num_blocks, kv_heads_, padded_dim_ * block_tokens}, options);
    layer.values = at::empty({num_blocks, kv_heads_, padded_dim_ * block_tokens}, options);
    if (padded_dim_ != config_.head_dim) layer.values.zero_();  // the lanes that nothing writes
  }
}

void HostStepModel::bind(const Decoder& decoder) {
  const c10::InferenceMode inference;
  config_ = decoder.config();
  for (const auto& parameter : decoder.parameters()) {
    if (!parameter.value.is_cpu()) {
      throw Error(ErrorCode::kUnavailable, "generation runs on the CPU; move the model there")
          .with("tensor", parameter.name);
    }
  }
  const StepWeights weights(decoder);
  embedding_ = weights.find("model.embed_tokens.weight");
  final_norm_ = norm_weight(weights.find("model.norm.weight"), config_);
  head_ = Matrix(decoder.head().weight.detach(), {});
  rotations_ = {RotaryEmbedding(config_.rope, config_.head_dim, at::kCPU), {}, {}};
  sliding_rotations_.reset();
  if (config_.sliding_rope)
    sliding_rotations_ =
        Rotations{RotaryEmbedding(*config_.sliding_rope, config_.head_dim, at::kCPU), {}, {}};
  layers_.resize(static_cast<size_t>(config_.num_hidden_layers));
  for (size_t i = 0; i < layers_.size(); ++i)
    bind_layer(i, weights);
}

void HostStepModel::bind_layer(size_t index, const StepWeights& weights) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const auto tensor = [&](const std::string& name) { return weights.find(prefix + name); };
  const auto matrix = [&](const std::string& name) {
    return Matrix(tensor(name + ".weight"), tensor(name + ".bias"));
  };
  // Closes a block: the ranks' results are summed, so only the first rank has the bias.
  const auto last_matrix = [&](const std::string& name) {
    return ranks_.rank() == 0 ? matrix(name) : Matrix(tensor(name + ".weight"), {});
  };

  // The norms are small: they are kept in fp32. The matrices are read as they lie.
  Layer& layer = layers_[index];
  layer.q = matrix("self_attn.q_proj");
  layer.k = matrix("self_attn.k_proj");
  layer.v = matrix("self_attn.v_proj");
  layer.o = last_matrix("self_attn.o_proj");
  layer.gate = matrix("mlp.gate_proj");
  layer.up = matrix("mlp.up_proj");
  layer.down = last_matrix("mlp.down_proj");
  const auto norm = [&](const char* name) { return norm_weight(tensor(name), config_); };
  layer.input_norm = norm("input_layernorm.weight");
  layer.post_norm = norm(config_.output_norms ? "pre_feedforward_layernorm.weight"
                                              : "post_attention_layernorm.weight");
  layer.q_norm = norm("self_attn.q_norm.weight");
  layer.k_norm = norm("self_attn.k_norm.weight");
  layer.attention_output_norm =
      config_.output_norms ? norm("post_attention_layernorm.weight") : at::Tensor();
  layer.mlp_output_norm = norm("post_feedforward_layernorm.weight");
  layer.window = config_.sliding_window[index];
}

int64_t HostStepModel::kv_bytes_of(const Decoder& decoder, int64_t num_blocks,
                                   int64_t block_tokens) {
  const ModelConfig& config = decoder.config();
  return 2 * config.num_hidden_layers * num_blocks * block_tokens * step_kv_heads(decoder) *
         padded(config.head_dim) * 4;
}

int64_t HostStepModel::kv_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_)
    bytes += static_cast<int64_t>(layer.keys.nbytes() + layer.values.nbytes());
  return bytes;
}

}  // namespace retort::models
