// What the messages of our own cost where thousands of ranks start: look-ups in the run's store,
// sessions, and a push of weights. Production code (store, agents, links, WeightBroadcast and
// WeightRelay) over a simulated network; no model.
//
// Sampled: sessions of many students with many teachers are too many for one process. Some students
//   connect to all teachers; the others would do the same.
// Time: what the network's options say: latency, what a host's link and a core take.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "tests/rpc/simulation/network.h"

namespace retort::roles::simulation {

// Of all students of a role of `teachers` together, with the store that the launcher has.
struct LookUpCost {
  uint64_t requests = 0, asked_bytes = 0, answered_bytes = 0;
};
// Every student waits for `at_once` addresses at a time, before any teacher is there.
// kResourceExhausted when the store refuses one.
LookUpCost look_up(int64_t students, int64_t teachers, int64_t at_once = 64);

// Of those that were simulated.
struct SessionCost {
  uint64_t sessions = 0, dials = 0;
  uint64_t control_bytes = 0, data_bytes = 0;  // both ends; without proofs
  double seconds = 0;                          // simulated, until the last one was up
  double core_seconds = 0;                     // that cores worked until then
};
SessionCost connect(int64_t sampled_students, int64_t teachers,
                    rpc::simulation::Network::Options network, Duration heartbeat);

struct PushCost {
  uint64_t model_bytes = 0;
  uint64_t sent_by_student = 0, most_sent_by_replica = 0;
  uint64_t messages = 0;
  uint64_t sessions = 0;  // of replicas with one another
  double seconds = 0;     // simulated, until all replicas had all of it
  size_t arrived = 0;     // replicas that have each bucket
};
PushCost push(int64_t replicas, int64_t num_buckets, int64_t bucket_bytes, bool pass_on,
              rpc::simulation::Network::Options network);

}  // namespace retort::roles::simulation
