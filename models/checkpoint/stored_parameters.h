// The parameters of a decoder as they lie in a model's files: listed, written and read. Private to
// models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/config/config.h"
#include "models/safetensors/layout.h"
#include "models/safetensors/safetensors.h"
#include "parallel/parameter.h"

namespace retort::models {

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
