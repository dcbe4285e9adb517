#include "models/checkpoint_tensors.h"

#include <array>
#include <string_view>

#include "models/parameter_specs.h"
#include "models/safetensors_writer.h"

namespace retort::models {
namespace {

// One of the parts of a fused tensor, which lie one behind the other.
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
