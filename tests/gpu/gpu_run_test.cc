// Whole runs of the real program whose roles all compute on one device: in float32 against the
// numbers that PyTorch and TRL have for the same recipe and against the same run on the CPU; in
// bfloat16 the gradients of the first step against those of float32 on the CPU.
#include <gtest/gtest.h>

#include "tests/gpu/device_under_test.h"
#include "tests/recipes/run_support/device_bfloat16.h"
#include "tests/recipes/run_support/device_cases.h"

namespace retort::test {
namespace {

// Sums of a device have another order than the CPU's, and AdamW makes whole steps of the rounding
// of gradients that are close to 0.
constexpr DeviceBounds kFloat32{.metrics = 1e-5, .parameters = 1e-5};

class GpuRun : public testing::TestWithParam<DeviceCase> {};

TEST_P(GpuRun, TrainsAsOnTheCpu) {
  RETORT_NEEDS_DEVICES(1);
  expect_trains_as_on_the_cpu(GetParam(), "cuda:0", kFloat32);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuRun, testing::ValuesIn(device_cases()),
                         [](const auto& info) { return name_of(info.param); });

class GpuBfloat16Run : public testing::TestWithParam<Bfloat16Case> {};

TEST_P(GpuBfloat16Run, FollowsFloat32) {
  RETORT_NEEDS_DEVICES(1);
  expect_bfloat16_follows_on_device(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuBfloat16Run, testing::ValuesIn(bfloat16_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::test

int main(int argc, char** argv) {
  retort::gpu_testing::find_device();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
