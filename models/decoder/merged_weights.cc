#include "models/decoder/merged_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <string_view>

namespace retort::models {

MergedWeights::MergedWeights(const Decoder& decoder) {
  if (!decoder.lora()) return;
  scaling_ = decoder.lora()->scaling();

  // An A stands before the B's that it belongs to, so the last A seen is theirs.
  constexpr std::string_view kFactorA = ".lora_A.weight";
  constexpr std::string_view kFactorB = ".lora_B.weight";
  at::Tensor a;
  for (const parallel::NamedParameter& factor : decoder.trained_parameters()) {
    if (factor.name.ends_with(kFactorA)) {
      a = factor.value.detach();
      continue;
    }
    if (!factor.name.ends_with(kFactorB)) {
      saved_[factor.name] = factor.value.detach();
      continue;
    }
    const std::string module = factor.name.substr(0, factor.name.size() - kFactorB.size());
    factors_[module + ".weight"] = {a, factor.value.detach()};
  }
}

at::Tensor MergedWeights::of(const parallel::NamedParameter& parameter) const {
  if (const auto saved = saved_.find(parameter.name); saved != saved_.end()) return saved->second;
  const at::Tensor own = parameter.value.detach();
  const auto found = factors_.find(parameter.name);
  if (found == factors_.end()) return own;

  // The slices of A and B that a rank has are those that make its slice of W, so no rank needs
  // another. The sum is formed in fp32 and rounded once.
  const at::NoGradGuard no_grad;
  const auto& [a, b] = found->second;
  at::Tensor sum = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  sum.addmm_(b.to(at::kFloat), a.to(at::kFloat), /*beta=*/1, /*alpha=*/scaling_);
  return sum.to(own.scalar_type());
}

std::vector<parallel::NamedParameter> merged_parameters(const Decoder& decoder) {
  std::vector<parallel::NamedParameter> merged = decoder.parameters();
  if (!decoder.lora()) return merged;
  const MergedWeights weights(decoder);
  for (parallel::NamedParameter& parameter : merged)
    if (const at::Tensor value = weights.of(parameter); !value.is_alias_of(parameter.value))
      parameter.value = value;
  return merged;
}

void merge_adapter(Decoder& decoder) {
  const at::NoGradGuard no_grad;
  const std::vector<parallel::NamedParameter> merged = merged_parameters(decoder);
  const std::vector<parallel::NamedParameter> own = decoder.parameters();
  for (size_t i = 0; i < own.size(); ++i)
    if (!own[i].value.is_same(merged[i].value)) at::Tensor(own[i].value).copy_(merged[i].value);
  decoder.detach_adapter();
}

}  // namespace retort::models
