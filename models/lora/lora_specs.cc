#include "models/lora/lora_specs.h"

#include <utility>

#include "base/error.h"
#include "models/checkpoint_tensors.h"

namespace retort::models {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

// A tensor that every tensor-parallel rank has whole and computes a part of the gradient of.
parallel::ParameterShard whole_with_partial_gradient(std::vector<int64_t> shape,
                                                     const Placement& placement) {
  return {.shape = std::move(shape),
          .copies = placement.tp_size(),
          .partial_gradient = placement.tp_size() > 1,
          .counted = placement.tp_rank() == 0};
}

// Split like a matrix along `dim`.
parallel::ParameterShard split_like(const parallel::ParameterShard& matrix,
                                    std::vector<int64_t> shape) {
  parallel::ParameterShard shard = matrix;
  shard.shape = std::move(shape);
  return shard;
}

void add_factors(const ParameterSpec& matrix, const LoraConfig& lora, const Placement& placement,
                 std::vector<ParameterSpec>& specs) {
  const std::vector<int64_t>& whole = matrix.shard.shape;
  const std::vector<int64_t> shape_a{lora.r, whole[1]};
  const std::vector<int64_t> shape_b{whole[0], lora.r};
  const std::vector<int64_t> slice_a{lora.r, matrix.shape[1]};
  const std::vector<int64_t> slice_b{matrix.shape[0], lora.r};

  // A row-parallel matrix has columns of its own: A reads them, and B sums over the ranks.
  const std::string module = module_of(matrix.name);
  const bool row_parallel = module == "o_proj" || module == "down_proj";
  ParameterSpec a{.name = lora_factor_name(matrix.name, "lora_A"),
                  .shape = slice_a,
                  .kind = ParameterKind::kMatrix};
  ParameterSpec b{.name = lora_factor_name(matrix.name, "lora_B"),
                  .shape = slice_b,
                  .kind = ParameterKind::kMatrix};
  a.shard = row_parallel ? split_like(matrix.shard, shape_a)
                         : whole_with_partial_gradient(shape_a, placement);
  b.shard = row_parallel ? whole_with_partial_gradient(shape_b, placement)
                         : split_like(matrix.shard, shape_b);
  specs.push_back(std::move(a));
  specs.push_back(std::move(b));
}

// An adapter's files name one factor for a matrix that the model's files hold as one.
void refuse_fused(const ModelConfig& config, const ParameterSpec& matrix) {
  const std::string file = checkpoint_tensor(config, matrix.name, matrix.shard.shape).name;
  if (file == matrix.name) return;
  throw Error(ErrorCode::kInvalidArgument,
              "LoRA does not adapt " + module_of(matrix.name) +
                  " of this model, which holds it in " + module_of(file) +
                  " with others; name target_modules that stand alone (o_proj, "
                  "down_proj)")
      .with("module", module_of(matrix.name));
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

std::vector<ParameterSpec> lora_specs(const ModelConfig& config, const LoraConfig& lora,
                                      const Placement& placement) {
  std::vector<ParameterSpec> specs;
  for (const ParameterSpec& spec : parameter_specs(config, placement)) {
    if (spec.kind != ParameterKind::kMatrix || !lora.adapts(module_of(spec.name))) continue;
    refuse_fused(config, spec);
    add_factors(spec, lora, placement, specs);
  }
  return specs;
}

}  // namespace retort::models
