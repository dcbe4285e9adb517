// The weights of one layer as the forward of generation on the CPU reads them. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "models/config/config.h"
#include "models/generation/cpu_kernels/products.h"
#include "models/generation/step_model.h"

namespace retort::models {

struct HostLayerWeights {
  Matrix q, k, v, o, gate, up, down;  // read as they lie
  // fp32, with the offset of the family's norms in them
  at::Tensor input_norm, post_norm, q_norm, k_norm;
  at::Tensor attention_output_norm, mlp_output_norm;  // undefined: there is none
  int64_t window = 0;

  // Takes the tensors of layer `index`. What ranks compute behind the attention and behind the MLP
  // is summed over them, so only rank 0 has those biases.
  void bind(const StepWeights& weights, const ModelConfig& config, size_t index, int64_t rank);
};

// What a norm multiplies by, in fp32; undefined stays so.
at::Tensor norm_weight(const at::Tensor& weight, const ModelConfig& config);

}  // namespace retort::models
