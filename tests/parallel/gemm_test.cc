// The products of linear layers, large enough for oneDNN.
#include "parallel/gemm.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tests/support/relative_difference.h"

namespace retort::parallel {
namespace {

using test::relative_difference;

TEST(Gemm, LargeProductsAgreeWithFp64) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({160, 256});
  const at::Tensor w = at::randn({192, 256});
  const at::Tensor b = at::randn({192});
  const at::Tensor g = at::randn({160, 192});
  const at::Tensor xd = x.to(at::kDouble);
  const at::Tensor wd = w.to(at::kDouble);
  const at::Tensor gd = g.to(at::kDouble);
  EXPECT_LT(relative_difference(linear_forward(x, w, b), xd.mm(wd.t()) + b), 1e-6);
  EXPECT_LT(relative_difference(linear_forward(x, w, {}), xd.mm(wd.t())), 1e-6);
  EXPECT_LT(relative_difference(linear_grad_input(g, w), gd.mm(wd)), 1e-6);
  EXPECT_LT(relative_difference(linear_grad_weight(g, x), gd.t().mm(xd)), 1e-6);
  EXPECT_TRUE(linear_grad_weight(g, x).is_contiguous());
}

TEST(Gemm, PaddedRowsTakeFewValues) {
  const auto here = [](int64_t rows) { return padded_rows(rows, at::kCPU); };
  EXPECT_EQ(here(0), 0);
  EXPECT_EQ(here(3), 3);
  EXPECT_EQ(here(9), 16);
  EXPECT_EQ(here(64), 64);
  EXPECT_EQ(here(65), 96);
  for (const int64_t rows : {0, 3, 9, 65})
    EXPECT_EQ(padded_rows(rows, at::kCUDA), rows);
}

}  // namespace
}  // namespace retort::parallel
