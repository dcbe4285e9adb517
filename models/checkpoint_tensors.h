// How a model's files call what the decoder has: a parameter is a tensor of its own, or rows of one
// that the family keeps fused. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/config.h"
#include "models/safetensors.h"
#include "models/safetensors_layout.h"
#include "parallel/parameter.h"

namespace retort::models {

// Phi-3's files hold q_proj, k_proj and v_proj as the rows of self_attn.qkv_proj.weight, gate_proj
// and up_proj as those of mlp.gate_up_proj.weight; in the decoder they are parameters of their own,
// so that tensor parallelism cuts each by its heads.
struct CheckpointTensor {
  std::string name;            // in the files
  std::vector<int64_t> shape;  // whole
  int64_t first_row = 0;       // where the parameter's rows begin in it
};

// Of a parameter of `config` with that whole shape.
CheckpointTensor checkpoint_tensor(const ModelConfig& config, const std::string& name,
                                   const std::vector<int64_t>& shape);

// Names and whole shapes of the tensors of the files, in the order of Decoder::parameters().
std::vector<TensorInfo> checkpoint_infos(const ModelConfig& config, at::ScalarType dtype);

// What a rank writes of its parameter, as a part of the files' tensor.
parallel::TensorPiece checkpoint_piece(const ModelConfig& config,
                                       const parallel::NamedParameter& parameter);

// A whole parameter as it lies in the files, not copied.
at::Tensor read_parameter(const SafetensorsReader& reader, const ModelConfig& config,
                          const std::string& name, const std::vector<int64_t>& shape);
// Rows [first, first + count) of it, not copied: no others are read.
at::Tensor read_parameter_rows(const SafetensorsReader& reader, const ModelConfig& config,
                               const std::string& name, const std::vector<int64_t>& shape,
                               int64_t first, int64_t count);

}  // namespace retort::models
