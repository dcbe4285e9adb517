// The device that the tests of this folder run on, or why there is none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "parallel/device_module.h"

namespace retort::gpu_testing {

// Where the tests look for libretort_cuda.so: RETORT_CUDA_MODULE, else beside RETORT_BIN.
std::string module_path();

struct DeviceUnderTest {
  std::shared_ptr<parallel::DeviceModule> module;  // null if it could not be opened
  int64_t num_devices = 0;
  std::string missing;  // why there is no device; empty if there is one
};

// Call it in main(), before LibTorch is used.
DeviceUnderTest find_device();
// The device of that number, of the type that the module has: CUDA, or the stand-in of the tests.
at::Device device_number(int64_t index = 0);

}  // namespace retort::gpu_testing

// Skips the test with the reason where there are fewer than `count` devices.
#define RETORT_NEEDS_DEVICES(count)                                    \
  const auto device_under_test = ::retort::gpu_testing::find_device(); \
  if (!device_under_test.missing.empty()) {                            \
    GTEST_SKIP() << device_under_test.missing;                         \
  } else if (device_under_test.num_devices < (count)) {                \
    GTEST_SKIP() << "needs " << (count) << " devices, this host has "  \
                 << device_under_test.num_devices;                     \
  }
