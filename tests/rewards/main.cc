#include <gtest/gtest.h>

#include "tests/rewards/player.h"

int main(int argc, char** argv) {
  retort::test::play_if_asked(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
