// device_head_test.cc by our own kernels, emulated on the stand-in device.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "tests/kernels/emulated_kernels.h"
#include "tests/losses/stand_in_device.h"

int main(int argc, char** argv) {
  using retort::emulator::EmulatedKernels;
  retort::test::stand_in_device();  // before the first backward pass
  auto kernels = std::make_unique<EmulatedKernels>(1, at::DeviceType::PrivateUse1,
                                                   retort::test::with_open_stand_in);
  const EmulatedKernels& launched = *kernels;
  retort::kernels::register_device_kernels(std::move(kernels));

  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  if (status == 0 && launched.num_launches() == 0) {
    std::fprintf(stderr, "no kernel was launched\n");
    return 1;
  }
  return status;
}
