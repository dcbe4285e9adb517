#include "models/ops/kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>

#include "models/ops/rope.h"

namespace retort::models {
namespace {

// How far what a gated activation's kernels give may be from autograd in fp64.
struct GatedBounds {
  double value, gradient;  // relative
  double absolute;         // of both, but for the gate's gradient, whose own is 1e-7
};

void expect_gated(decltype(&swiglu_forward) forward, decltype(&swiglu_backward) backward,
                  const std::function<at::Tensor(const at::Tensor&)>& activation,
                  const GatedBounds& bounds) {
  const at::Tensor gate = at::linspace(-120, 120, 4801);
  const at::Tensor up = at::linspace(-2, 3, 4801);
  const at::Tensor dout = at::linspace(1, -1, 4801);
  at::Tensor y = at::empty_like(gate);
  at::Tensor dgate = at::empty_like(gate);
  at::Tensor dup = at::empty_like(gate);
  forward(gate.const_data_ptr<float>(), up.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
          4801);
  backward(dout.const_data_ptr<float>(), gate.const_data_ptr<float>(), up.const_data_ptr<float>(),
           dgate.mutable_data_ptr<float>(), dup.mutable_data_ptr<float>(), 4801);

  at::Tensor g = gate.to(at::kDouble).set_requires_grad(true);
  at::Tensor u = up.to(at::kDouble).set_requires_grad(true);
  const at::Tensor expected = activation(g) * u;
  torch::autograd::backward({expected}, {dout.to(at::kDouble)});
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected.detach(), bounds.value, bounds.absolute));
  EXPECT_TRUE(at::allclose(dgate.to(at::kDouble), g.grad(), bounds.gradient, 1e-7));
  EXPECT_TRUE(at::allclose(dup.to(at::kDouble), u.grad(), bounds.gradient, bounds.absolute));
}

TEST(Kernels, SwigluOverTheWholeRange) {
  expect_gated(swiglu_forward, swiglu_backward, [](const at::Tensor& x) { return at::silu(x); },
               {.value = 1e-6, .gradient = 2e-6, .absolute = 1e-30});
  float nan = NAN;
  float one = 1;
  float out = 0;
  swiglu_forward(&nan, &one, &out, 1);
  EXPECT_TRUE(std::isnan(out));
}

TEST(Kernels, GegluOverTheWholeRange) {
  expect_gated(geglu_forward, geglu_backward,
               [](const at::Tensor& x) { return at::gelu(x, "tanh"); },
               {.value = 4e-6, .gradient = 4e-6, .absolute = 1e-12});
}

// What lies behind the rotated dimensions of a head stays; the other sign undoes a rotation.
TEST(Kernels, RotatesAPartOfEachHead) {
  const at::Tensor given = at::linspace(-1, 1, 2 * 3 * 10).contiguous();
  const at::Tensor angles = at::linspace(0.1, 2.0, 2 * 4).view({2, 4});
  const at::Tensor cos = angles.cos();
  const at::Tensor sin = angles.sin();
  at::Tensor x = given.clone();
  const auto turn = [&](float sign) {
    rotate_rows(x.mutable_data_ptr<float>(), cos.const_data_ptr<float>(),
                sin.const_data_ptr<float>(), 2, 3, 10, 4, sign);
  };
  turn(1.0f);
  const at::Tensor expected = rotate(given.view({2, 3, 10}), {cos, sin});
  EXPECT_TRUE(at::allclose(x.view({2, 3, 10}), expected, 1e-6, 1e-7));
  EXPECT_TRUE(at::equal(expected.narrow(2, 8, 2), given.view({2, 3, 10}).narrow(2, 8, 2)));
  turn(-1.0f);
  EXPECT_TRUE(at::allclose(x, given, 1e-6, 1e-6));
}

}  // namespace
}  // namespace retort::models
