#include "models/gguf/gguf_family.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "models/config/families.h"
#include "models/ops/rope.h"

namespace retort::models {
namespace {

using Names = std::pair<std::string_view, std::string_view>;

// Each row has the name in the checkpoint and the name in the file.
constexpr std::array<Names, 3> kOuterNames{
    {{"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}}};
constexpr std::array<Names, 11> kLayerNames{{{"input_layernorm", "attn_norm"},
                                             {"self_attn.q_proj", "attn_q"},
                                             {"self_attn.k_proj", "attn_k"},
                                             {"self_attn.v_proj", "attn_v"},
                                             {"self_attn.q_norm", "attn_q_norm"},
                                             {"self_attn.k_norm", "attn_k_norm"},
                                             {"self_attn.o_proj", "attn_output"},
                                             {"post_attention_layernorm", "ffn_norm"},
                                             {"mlp.gate_proj", "ffn_gate"},
                                             {"mlp.up_proj", "ffn_up"},
                                             {"mlp.down_proj", "ffn_down"}}};

template <size_t N>
std::string_view look_up(const std::array<Names, N>& table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Names& names) { return names.first == name; });
  RETORT_CHECK(found != table.end()) << "no GGUF name for the tensor '" << name << "'";
  return found->second;
}

// Returns the name of the graph, or nothing for a family that the export does not know.
std::string_view architecture_of(Family family) {
  const char* architecture = family_traits(family).gguf_architecture;
  return architecture == nullptr ? std::string_view() : architecture;
}

Error refusal(const std::string& key, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, "llama.cpp cannot compute this model: " + what)
      .with("key", key);
}

// Returns the narrowest window of a layer that has one; 0 if none has.
int64_t narrowest_window(const ModelConfig& config) {
  int64_t narrowest = 0;
  for (const int64_t window : config.sliding_window)
    if (window > 0 && (narrowest == 0 || window < narrowest)) narrowest = window;
  return narrowest;
}

}  // namespace

std::string gguf_architecture(Family family) {
  const std::string_view architecture = architecture_of(family);
  RETORT_CHECK(!architecture.empty()) << "check_gguf_expressible was not asked about the family";
  return std::string(architecture);
}

std::string gguf_tensor_name(const std::string& name) {
  // In both names "weight" or "bias" follows the last dot.
  const size_t dot = name.rfind('.');
  const std::string kind = name.substr(dot);
  const std::string stem = name.substr(0, dot);

  const std::string_view prefix = "model.layers.";
  if (!stem.starts_with(prefix)) return std::string(look_up(kOuterNames, stem)) + kind;
  const size_t end = stem.find('.', prefix.size());
  const std::string layer = stem.substr(prefix.size(), end - prefix.size());
  const std::string_view inner = std::string_view(stem).substr(end + 1);
  return "blk." + layer + "." + std::string(look_up(kLayerNames, inner)) + kind;
}

bool gguf_interleaves(const ModelConfig& config, const std::string& name) {
  const bool rotated = name.find(".self_attn.q_proj.") != std::string::npos ||
                       name.find(".self_attn.k_proj.") != std::string::npos;
  return rotated && architecture_of(config.family) == "llama";
}

at::Tensor gguf_interleave(const at::Tensor& rows, int64_t head_dim) {
  // The rows are [heads, 2, head_dim / 2, ...]. Exchanging the two middle dimensions puts the two
  // elements that rotate together side by side.
  std::vector<int64_t> halves = rows.sizes().vec();
  halves[0] = rows.size(0) / head_dim;
  halves.insert(halves.begin() + 1, {2, head_dim / 2});
  return rows.reshape(halves).transpose(1, 2).reshape(rows.sizes());
}

at::Tensor gguf_rope_divisors(const ModelConfig& config) {
  if (config.rope.type != "llama3") return {};
  const Rope plain{.theta = config.rope.theta};
  return rope_inverse_frequencies(plain, config.head_dim) /
         rope_inverse_frequencies(config.rope, config.head_dim);
}

void add_gguf_settings(const ModelConfig& config, int64_t context_length, GgufMetadata& metadata) {
  const std::string prefix = gguf_architecture(config.family) + ".";
  const auto add_size = [&](const char* key, int64_t value) {
    metadata.add(prefix + key, static_cast<uint32_t>(value));
  };

  // These keys are sizes.
  add_size("vocab_size", config.vocab_size);
  add_size("block_count", config.num_hidden_layers);
  add_size("context_length", context_length);
  add_size("embedding_length", config.hidden_size);
  add_size("feed_forward_length", config.intermediate_size);
  add_size("attention.head_count", config.num_attention_heads);
  add_size("attention.head_count_kv", config.num_key_value_heads);
  add_size("attention.key_length", config.head_dim);
  add_size("attention.value_length", config.head_dim);

  // Norms and positions. Llama 3's scaling is in rope_freqs.weight instead.
  metadata.add(prefix + "attention.layer_norm_rms_epsilon",
               static_cast<float>(config.rms_norm_eps));
  add_size("rope.dimension_count", config.head_dim);
  metadata.add(prefix + "rope.freq_base", static_cast<float>(config.rope.theta));
  if (config.rope.type == "linear") {
    metadata.add(prefix + "rope.scaling.type", "linear");
    metadata.add(prefix + "rope.scaling.factor", static_cast<float>(config.rope.factor));
  }
}

void check_gguf_expressible(const ModelConfig& config, int64_t context_length) {
  // The file must compute what the model computes: whatever llama.cpp's graph of the family does
  // otherwise is refused here.
  const std::string_view graph = architecture_of(config.family);
  if (graph.empty())
    throw refusal("model_type", std::string("the export knows ") + exported_families() + ", not " +
                                    family_traits(config.family).model_type);
  const std::string& rope = config.rope.type;
  if (rope != "default" && rope != "linear" && rope != "llama3")
    throw refusal("rope_type", "the export knows no rotary scaling of type '" + rope + "'");
  if (context_length > std::numeric_limits<int32_t>::max())
    throw refusal("context_length", "positions are 32-bit integers");
  if (graph == "qwen3" && config.attention_out_bias)
    throw refusal("attention_bias", "its qwen3 has no bias in the output of attention");
  if (graph != "llama" && config.rope.type == "llama3")
    throw refusal("rope_type", "its qwen2 and qwen3 have no rotary scaling of type 'llama3'");
  if (graph == "qwen2" && config.num_attention_heads * config.head_dim != config.hidden_size)
    throw refusal("head_dim", "the heads of its qwen2 together have the hidden size");

  // For texts of up to as many tokens as the window has, full attention is the same function.
  const int64_t window = narrowest_window(config);
  if (window > 0 && window < context_length) {
    throw refusal(
        "sliding_window",
        "it gives every layer of this family full attention, this model has a window of " +
            std::to_string(window) + " tokens; --context-length " + std::to_string(window) +
            " writes a file that is exact up to there");
  }
}

}  // namespace retort::models
