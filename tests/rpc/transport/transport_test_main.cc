// The program of the transport's tests: the tests themselves, or one of the peers that they spawn.
#include <gtest/gtest.h>

#include "base/end_process.h"
#include "tests/rpc/transport/spawned_node.h"

int main(int argc, char** argv) {
  if (const auto code = retort::rpc::transport::testing::run_if_spawned())
    retort::end_process(*code);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
