// The main function of tests on the stand-in device that need nothing else: a library of its own,
// because others that use the device have theirs.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/losses/stand_in_device.h"

int main(int argc, char** argv) {
  // LibTorch counts the devices at the first backward pass, and once.
  retort::test::stand_in_device();
  testing::InitGoogleTest(&argc, argv);
  // The device computes on the host: threads beside each other would be those of other tests.
  at::set_num_threads(1);
  return RUN_ALL_TESTS();
}
