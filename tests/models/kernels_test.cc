#include "models/kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace retort::models {
namespace {

TEST(Kernels, SwigluOverTheWholeRange) {
  const at::Tensor gate = at::linspace(-120, 120, 4801);
  const at::Tensor up = at::linspace(-2, 3, 4801);
  const at::Tensor dout = at::linspace(1, -1, 4801);
  at::Tensor y = at::empty_like(gate);
  at::Tensor dgate = at::empty_like(gate);
  at::Tensor dup = at::empty_like(gate);
  swiglu_forward(gate.const_data_ptr<float>(), up.const_data_ptr<float>(),
                 y.mutable_data_ptr<float>(), 4801);
  swiglu_backward(dout.const_data_ptr<float>(), gate.const_data_ptr<float>(),
                  up.const_data_ptr<float>(), dgate.mutable_data_ptr<float>(),
                  dup.mutable_data_ptr<float>(), 4801);
  at::Tensor g = gate.to(at::kDouble).set_requires_grad(true);
  at::Tensor u = up.to(at::kDouble).set_requires_grad(true);
  const at::Tensor expected = at::silu(g) * u;
  torch::autograd::backward({expected}, {dout.to(at::kDouble)});
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected.detach(), 1e-6, 1e-30));
  EXPECT_TRUE(at::allclose(dgate.to(at::kDouble), g.grad(), 2e-6, 1e-7));
  EXPECT_TRUE(at::allclose(dup.to(at::kDouble), u.grad(), 2e-6, 1e-30));
  float nan = NAN;
  float one = 1;
  float out = 0;
  swiglu_forward(&nan, &one, &out, 1);
  EXPECT_TRUE(std::isnan(out));
}

}  // namespace
}  // namespace retort::models
