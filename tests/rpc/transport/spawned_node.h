// A node in a process of its own.
#pragma once

#include <optional>
#include <string>

#include "tests/support/process.h"

namespace retort::rpc::transport::testing {

// In a spawned child: serves as "teacher/0" until the parent closes the channel. First it prints
//   its
// address. Returns the exit code; nullopt in the test itself.
std::optional<int> run_if_spawned();

struct SpawnedNode {
  test::ChildProcess process;
  std::string address;
};
// `max_descriptors` > 0: with that limit (RLIMIT_NOFILE).
SpawnedNode spawn_node(const std::string& channels, bool tls = false, int max_descriptors = 0);

}  // namespace retort::rpc::transport::testing
