// The program of the store's tests: the tests themselves, or one of the processes that they spawn.
#include <gtest/gtest.h>

#include "base/end_process.h"
#include "tests/rpc/rendezvous/spawned_rank.h"

int main(int argc, char** argv) {
  if (const auto code = retort::rpc::rendezvous::testing::run_if_spawned())
    retort::end_process(*code);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
