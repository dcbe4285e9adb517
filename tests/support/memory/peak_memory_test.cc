#include "tests/support/memory/peak_memory.h"

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace retort::test {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor mebibytes(int64_t count) { return at::zeros({count * kMiB / 4}); }

TEST(PeakMemory, IsTheMostAliveAtOneTime) {
  const at::Tensor before = mebibytes(8);
  PeakMemory memory;
  EXPECT_EQ(memory.peak_bytes(), 0);
  { const at::Tensor a = mebibytes(3); }
  {
    const at::Tensor a = mebibytes(2), b = mebibytes(2);
    EXPECT_EQ(memory.live_bytes(), 4 * kMiB);
  }
  const at::Tensor c = mebibytes(1);
  EXPECT_EQ(memory.peak_bytes(), 4 * kMiB);
  EXPECT_EQ(memory.live_bytes(), kMiB);
  memory.reset();
  EXPECT_EQ(memory.peak_bytes(), 0);
}

TEST(PeakMemory, FreeingWhatExistedBeforeCountsNothing) {
  at::Tensor before = mebibytes(8);
  PeakMemory memory;
  before = at::Tensor();
  const at::Tensor a = mebibytes(1);
  EXPECT_EQ(memory.peak_bytes(), kMiB);
}

TEST(PeakMemory, SeesTheBackwardPass) {
  const at::Tensor w = mebibytes(1).requires_grad_(true);
  PeakMemory memory;
  const at::Tensor loss = (w * w).sum();
  EXPECT_LT(memory.peak_bytes(), kMiB + 4096);  // the product
  loss.backward();
  EXPECT_GE(memory.peak_bytes(), 2 * kMiB);  // w * dy twice and their sum, at least two at a time
  EXPECT_EQ(w.grad().nbytes(), static_cast<size_t>(kMiB));
}

TEST(PeakMemory, TheInnerOneHidesItsAllocations) {
  PeakMemory outer;
  {
    PeakMemory inner;
    const at::Tensor a = mebibytes(2);
    EXPECT_EQ(inner.peak_bytes(), 2 * kMiB);
  }
  EXPECT_EQ(outer.peak_bytes(), 0);
  const at::Tensor b = mebibytes(1);
  EXPECT_EQ(outer.peak_bytes(), kMiB);
}

}  // namespace
}  // namespace retort::test
