// A scalar whose gradients are known already, as an autograd node: losses over a few numbers form
// both together in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace retort::losses::detail {

struct FormedGradient {
  at::Tensor input;     // [N] float32
  at::Tensor gradient;  // [N] float32 on the CPU, of the value with respect to input
};

// A scalar float32 on the first input's device holding `value`, attached to every input that
// requires grad (if grad mode is on): backward gives it its gradient times the incoming scalar, on
// its own device. Differentiable once. At most two inputs.
at::Tensor scalar_with_gradients(double value, const std::vector<FormedGradient>& inputs);

}  // namespace retort::losses::detail
