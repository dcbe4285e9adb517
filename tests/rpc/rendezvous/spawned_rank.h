// Processes of the store's tests: a rank of a process group of Gloo's, and a client that waits for
// a key that never comes.
#pragma once

#include <cstdint>
#include <optional>

#include "tests/support/process.h"

namespace retort::rpc::rendezvous::testing {

// In a spawned child: plays its part. Returns the exit code; nullopt in the test itself.
std::optional<int> run_if_spawned();

// Connects a group over the store, takes part in its collectives and exits with 0 if their results
// are right.
test::ChildProcess spawn_rank(int rank, int size, uint16_t port, bool tls);

}  // namespace retort::rpc::rendezvous::testing
