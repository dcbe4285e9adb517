// Copies of small tensors to a device, on the stand-in, which tells what the host would wait for.
#include "parallel/staged_copy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/losses/stand_in_device.h"

namespace retort::parallel {
namespace {

using Copies = std::vector<std::string>;

TEST(StagedCopy, ManyTensorsInOneCopyThatNobodyWaitsFor) {
  const at::Device device = test::stand_in_device();
  const at::Tensor strided = at::arange(12, at::kLong).view({3, 4}).t();
  const std::vector<at::Tensor> given{at::arange(5, at::kInt), at::Tensor(), strided,
                                      at::empty({0, 7}, at::kFloat),
                                      at::arange(3, at::kFloat).to(at::kBFloat16)};
  test::RecordedReads recorded;
  const std::vector<at::Tensor> moved = staged_to(device, given);
  // 20, 96 and 6 bytes, each rounded up to 16.
  EXPECT_EQ(recorded.take_copies_to_device(), Copies{"Byte[144]"});

  ASSERT_EQ(moved.size(), given.size());
  EXPECT_FALSE(moved[1].defined());
  for (const size_t i : {0, 2, 3, 4}) {
    EXPECT_EQ(moved[i].device(), device);
    EXPECT_EQ(moved[i].scalar_type(), given[i].scalar_type());
    EXPECT_EQ(moved[i].sizes(), given[i].sizes());
    EXPECT_TRUE(at::equal(moved[i].cpu(), given[i])) << i;
    EXPECT_EQ(moved[i].storage_offset() * static_cast<int64_t>(moved[i].itemsize()) % 16, 0);
  }
}

TEST(StagedCopy, WhatIsThereStaysAsItIs) {
  const at::Device device = test::stand_in_device();
  const at::Tensor host = at::arange(4, at::kLong), there = host.to(device);
  test::RecordedReads recorded;
  EXPECT_TRUE(staged_to(device, there).is_alias_of(there));
  EXPECT_TRUE(staged_to(at::kCPU, host).is_alias_of(host));
  EXPECT_FALSE(staged_to(device, at::Tensor()).defined());
  EXPECT_EQ(recorded.take_copies_to_device(), Copies{});

  // A plain copy of pageable memory is one to wait for, whatever it is asked to be.
  const at::Tensor plain = host.to(device, /*non_blocking=*/true);
  EXPECT_EQ(recorded.take_copies_to_device(), Copies{"waits Long[4]"});
}

TEST(StagedCopy, HasTheValuesOfTheCallAndNoGradient) {
  const at::Tensor host = at::arange(4, at::kFloat).requires_grad_(true);
  const at::Tensor moved = staged_to(test::stand_in_device(), host);
  host.detach().zero_();
  EXPECT_FALSE(moved.requires_grad());
  EXPECT_TRUE(at::equal(moved.cpu(), at::arange(4, at::kFloat)));
}

}  // namespace
}  // namespace retort::parallel
