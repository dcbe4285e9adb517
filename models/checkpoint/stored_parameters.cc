#include "models/checkpoint/stored_parameters.h"

#include <utility>

#include "models/parameters/checkpoint_tensor.h"
#include "models/parameters/parameter_specs.h"
#include "models/safetensors/writer.h"

namespace retort::models {

std::vector<TensorInfo> checkpoint_infos(const ModelConfig& config, at::ScalarType dtype) {
  std::vector<TensorInfo> infos;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    CheckpointTensor tensor = checkpoint_tensor(config, spec.name, spec.shape);
    if (tensor.first_row == 0)
      infos.push_back({std::move(tensor.name), dtype, std::move(tensor.shape)});
  }
  return infos;
}

parallel::TensorPiece checkpoint_piece(const ModelConfig& config,
                                       const parallel::NamedParameter& parameter) {
  parallel::TensorPiece piece = parameter_piece(parameter);
  CheckpointTensor tensor = checkpoint_tensor(config, piece.name, piece.shape);
  if (tensor.name == piece.name) return piece;

  // The parts of fused tensors are cut by rows.
  piece.dim = 0;
  piece.offset += tensor.first_row;
  piece.name = std::move(tensor.name);
  piece.shape = std::move(tensor.shape);
  return piece;
}

at::Tensor read_parameter(const SafetensorsReader& reader, const ModelConfig& config,
                          const std::string& name, const std::vector<int64_t>& shape) {
  const CheckpointTensor tensor = checkpoint_tensor(config, name, shape);
  if (tensor.name == name) return reader.get(name);
  return reader.rows(tensor.name, tensor.first_row, shape.at(0));
}

at::Tensor read_parameter_rows(const SafetensorsReader& reader, const ModelConfig& config,
                               const std::string& name, const std::vector<int64_t>& shape,
                               int64_t first, int64_t count) {
  const CheckpointTensor tensor = checkpoint_tensor(config, name, shape);
  return reader.rows(tensor.name, tensor.first_row + first, count);
}

}  // namespace retort::models
