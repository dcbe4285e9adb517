#include "models/parameters/checkpoint_tensor.h"

#include <array>
#include <string_view>

namespace retort::models {
namespace {

// The parts of a fused tensor lie one behind the other; this is one of them.
struct FusedPart {
  std::string_view part;   // inside the layer
  std::string_view fused;  // the same
  int64_t first_row;
  int64_t rows;  // of the fused tensor
};

std::array<FusedPart, 5> fused_parts(const ModelConfig& config) {
  const int64_t q = config.num_attention_heads * config.head_dim;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const int64_t inner = config.intermediate_size;
  constexpr std::string_view kQkv = "self_attn.qkv_proj.weight";
  constexpr std::string_view kGateUp = "mlp.gate_up_proj.weight";
  return {{{"self_attn.q_proj.weight", kQkv, 0, q + 2 * kv},
           {"self_attn.k_proj.weight", kQkv, q, q + 2 * kv},
           {"self_attn.v_proj.weight", kQkv, q + kv, q + 2 * kv},
           {"mlp.gate_proj.weight", kGateUp, 0, 2 * inner},
           {"mlp.up_proj.weight", kGateUp, inner, 2 * inner}}};
}

}  // namespace

CheckpointTensor checkpoint_tensor(const ModelConfig& config, const std::string& name,
                                   const std::vector<int64_t>& shape) {
  if (!config.fused_projections) return {name, shape, 0};
  for (const FusedPart& part : fused_parts(config)) {
    if (!name.ends_with("." + std::string(part.part))) continue;
    const std::string layer = name.substr(0, name.size() - part.part.size());
    return {layer + std::string(part.fused), {part.rows, shape.at(1)}, part.first_row};
  }
  return {name, shape, 0};
}

}  // namespace retort::models
