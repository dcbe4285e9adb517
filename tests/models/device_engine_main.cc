// device_engine_test.cc by ATen's operators.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tests/losses/stand_in_device.h"

int main(int argc, char** argv) {
  retort::test::stand_in_device();  // before LibTorch counts the devices
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
