// What the calls of a method cost.
#pragma once

#include <cstdint>
#include <string>

#include "base/log_histogram.h"

namespace retort::rpc {

// Counted since the agent began; it only grows, so the difference of two copies is what came
// between them. A call is counted when it has ended.
struct MethodStats {
  uint64_t calls = 0;                           // that have ended, however
  uint64_t errors = 0;                          // of those: with an error that is no cancellation
  uint64_t bytes_sent = 0, bytes_received = 0;  // by this agent: requests and replies
  // Calls whose request waited for credit here (rpc.max_inflight_bytes) or for room that the
  // receiver grants, and how long they did. Only where calls are made, not where they are served.
  uint64_t credit_waits = 0;
  double credit_wait_seconds = 0;
  // The times of calls that came back with a value:
  LogHistogram queue;    // complete at the server, until its handler began
  LogHistogram handler;  // until the answer was there; also what the role itself lets it wait for
  // The rest of the round trip without the waits above: both ways, with what a reply waits for
  // room. Only where calls are made.
  LogHistogram wire;

  MethodStats& operator+=(const MethodStats& other);
  // What came after `before`, an earlier copy of this.
  MethodStats since(const MethodStats& before) const;

  template <class A>
  void serialize(A& archive) {
    archive(calls, errors, bytes_sent, bytes_received, credit_waits, credit_wait_seconds, queue,
            handler, wire);
  }
};

// The traffic of one method between this agent and a peer.
struct MethodTraffic {
  std::string peer;  // "teacher/0"
  std::string method;
  bool served = false;  // by this agent, for the peer; else called here
  MethodStats stats;
};

}  // namespace retort::rpc
