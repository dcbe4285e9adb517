#include "models/generation/host_layer_weights.h"

#include <ATen/TensorOperators.h>

#include <string>

namespace retort::models {

at::Tensor norm_weight(const at::Tensor& weight, const ModelConfig& config) {
  if (!weight.defined()) return weight;
  const at::Tensor wide = weight.to(at::kFloat).contiguous();
  return config.norm_unit_offset ? wide + 1 : wide;
}

void HostLayerWeights::bind(const StepWeights& weights, const ModelConfig& config, size_t index,
                            int64_t rank) {
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const auto tensor = [&](const std::string& name) { return weights.find(prefix + name); };
  const auto matrix = [&](const std::string& name) {
    return Matrix(tensor(name + ".weight"), tensor(name + ".bias"));
  };
  // This matrix closes a block: the ranks' results are summed, so only the first rank has the bias.
  const auto last_matrix = [&](const std::string& name) {
    return rank == 0 ? matrix(name) : Matrix(tensor(name + ".weight"), {});
  };

  // The norms are small, so they are kept in fp32. The matrices are read where they lie.
  q = matrix("self_attn.q_proj");
  k = matrix("self_attn.k_proj");
  v = matrix("self_attn.v_proj");
  o = last_matrix("self_attn.o_proj");
  gate = matrix("mlp.gate_proj");
  up = matrix("mlp.up_proj");
  down = last_matrix("mlp.down_proj");
  const auto norm = [&](const char* name) { return norm_weight(tensor(name), config); };
  input_norm = norm("input_layernorm.weight");
  post_norm = norm(config.output_norms ? "pre_feedforward_layernorm.weight"
                                       : "post_attention_layernorm.weight");
  q_norm = norm("self_attn.q_norm.weight");
  k_norm = norm("self_attn.k_norm.weight");
  attention_output_norm =
      config.output_norms ? norm("post_attention_layernorm.weight") : at::Tensor();
  mlp_output_norm = norm("post_feedforward_layernorm.weight");
  window = config.sliding_window[index];
}

}  // namespace retort::models
