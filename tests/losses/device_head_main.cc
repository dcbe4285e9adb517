// device_head_test.cc by ATen's operators.
#include <gtest/gtest.h>

#include "tests/losses/stand_in_device.h"

int main(int argc, char** argv) {
  retort::test::stand_in_device();  // before the first backward pass
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
