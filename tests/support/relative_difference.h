// How far two tensors are apart.
#pragma once

#include <ATen/core/Tensor.h>

namespace retort::test {

// A floor for tensors that may be zeros.
inline constexpr double kMayBeZero = 1e-12;

// |got - expected| / |expected| by norm, in float64 on the host. The norm of `expected` counts as
// at least `floor`: with 0, a tensor of zeros is at a distance of NaN even from itself.
inline double relative_difference(const at::Tensor& got, const at::Tensor& expected,
                                  double floor = 0) {
  const at::Tensor a = got.detach().cpu().to(at::kDouble);
  const at::Tensor b = expected.detach().cpu().to(at::kDouble);
  return a.sub(b).norm().div(b.norm().clamp_min(floor)).item<double>();
}

}  // namespace retort::test
