#include "models/lora/lora_specs.h"

#include <set>
#include <string_view>
#include <utility>

#include "models/lora/lora_targets.h"

namespace retort::models {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

// Describes a tensor that every tensor-parallel rank has whole, and of whose gradient each computes
// a part.
parallel::ParameterShard whole_with_partial_gradient(std::vector<int64_t> shape,
                                                     const Placement& placement) {
  return {.shape = std::move(shape),
          .copies = placement.tp_size(),
          .partial_gradient = placement.tp_size() > 1,
          .counted = placement.tp_rank() == 0};
}

// Describes a tensor that is split like a matrix, along the same dimension.
parallel::ParameterShard split_like(const parallel::ParameterShard& matrix,
                                    std::vector<int64_t> shape) {
  parallel::ParameterShard shard = matrix;
  shard.shape = std::move(shape);
  return shard;
}

// A row-parallel matrix has columns of its own: A reads them, and B sums over the ranks.
bool is_row_parallel(const std::string& parameter) {
  const std::string module = module_of(parameter);
  return module == "o_proj" || module == "down_proj";
}

ParameterSpec factor_a(const ParameterSpec& matrix, const std::string& module,
                       const LoraConfig& lora, const Placement& placement) {
  const std::vector<int64_t> shape{lora.r, matrix.shard.shape[1]};
  ParameterSpec a{.name = module + ".lora_A.weight",
                  .shape = {lora.r, matrix.shape[1]},
                  .kind = ParameterKind::kMatrix};
  a.shard = is_row_parallel(matrix.name) ? split_like(matrix.shard, shape)
                                         : whole_with_partial_gradient(shape, placement);
  return a;
}

ParameterSpec factor_b(const ParameterSpec& matrix, const LoraConfig& lora,
                       const Placement& placement) {
  const std::vector<int64_t> shape{matrix.shard.shape[0], lora.r};
  ParameterSpec b{.name = lora_factor_name(matrix.name, "lora_B"),
                  .shape = {matrix.shape[0], lora.r},
                  .kind = ParameterKind::kMatrix};
  b.shard = is_row_parallel(matrix.name) ? whole_with_partial_gradient(shape, placement)
                                         : split_like(matrix.shard, shape);
  return b;
}

}  // namespace

std::string module_of(const std::string& parameter) {
  if (!parameter.ends_with(kWeightSuffix)) return "";
  const size_t end = parameter.size() - kWeightSuffix.size();
  const size_t dot = parameter.rfind('.', end - 1);
  return dot == std::string::npos ? "" : parameter.substr(dot + 1, end - dot - 1);
}

std::string lora_factor_name(const std::string& parameter, const char* factor) {
  if (!parameter.ends_with(kWeightSuffix)) return "";
  return parameter.substr(0, parameter.size() - kWeightSuffix.size()) + "." + factor + ".weight";
}

int64_t layer_of(const std::string& parameter) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!parameter.starts_with(kLayers)) return -1;
  return std::stoll(parameter.substr(kLayers.size()));
}

std::string lora_module(const ModelConfig& config, const ParameterSpec& parameter) {
  if (parameter.kind != ParameterKind::kMatrix || layer_of(parameter.name) < 0) return "";
  const std::string file = checkpoint_tensor(config, parameter.name, parameter.shard.shape).name;
  return file.substr(0, file.size() - kWeightSuffix.size());
}

std::vector<ParameterSpec> lora_specs(const ModelConfig& config, const LoraConfig& lora,
                                      const Placement& placement) {
  std::set<std::string> adapted;
  for (const AdaptedModule& module : adapted_modules(config, lora))
    adapted.insert(module.name);
  const std::vector<std::string> names = saved_parameters(config, lora);
  const std::set<std::string> saved(names.begin(), names.end());

  // The parts of a fused matrix follow one another and share the first one's A.
  std::vector<ParameterSpec> specs;
  std::string before;
  for (const ParameterSpec& spec : parameter_specs(config, placement)) {
    if (saved.contains(spec.name)) specs.push_back(spec);
    const std::string module = lora_module(config, spec);
    if (!adapted.contains(module)) continue;
    if (module != before) specs.push_back(factor_a(spec, module, lora, placement));
    specs.push_back(factor_b(spec, lora, placement));
    before = module;
  }
  return specs;
}

CheckpointTensor adapter_tensor(const ModelConfig& config, const std::string& factor,
                                const std::vector<int64_t>& shape) {
  // The rows of B lie in a fused B as those of its matrix lie in the fused matrix.
  constexpr std::string_view kFactor = ".lora_B.weight";
  if (!factor.ends_with(kFactor)) return {factor, shape, 0};
  const std::string matrix =
      factor.substr(0, factor.size() - kFactor.size()) + std::string(kWeightSuffix);
  CheckpointTensor tensor = checkpoint_tensor(config, matrix, shape);
  tensor.name = lora_factor_name(tensor.name, "lora_B");
  return tensor;
}

}  // namespace retort::models
