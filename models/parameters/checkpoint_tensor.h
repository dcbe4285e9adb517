// How a model's files call what the decoder has: a parameter is a tensor of its own, or rows of one
// that the family keeps fused. Private to models/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"

namespace retort::models {

// Phi-3's files hold q_proj, k_proj and v_proj as the rows of self_attn.qkv_proj.weight, gate_proj
// and up_proj as those of mlp.gate_up_proj.weight; in the decoder they are parameters of their own,
// so that tensor parallelism cuts each by its heads.
struct CheckpointTensor {
  std::string name;            // in the files
  std::vector<int64_t> shape;  // whole
  int64_t first_row = 0;       // where the parameter's rows begin in it
};

// Finds the tensor that holds a parameter of `config` with that whole shape.
CheckpointTensor checkpoint_tensor(const ModelConfig& config, const std::string& name,
                                   const std::vector<int64_t>& shape);

}  // namespace retort::models
