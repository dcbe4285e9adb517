// What a run's calls to its other roles cost, as metrics.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "parallel/group.h"
#include "recipes/run/metrics/metrics_writer.h"
#include "rpc/agent.h"

namespace retort::recipes {

// For each role and method that were called since the last row, over all ranks of the student and
// of the role, "rpc/<role>/<method>/" with
//
//   calls, errors                     that ended; of those with an error
//   queue_p50, queue_p99              seconds that a request waited for its handler
//   handler_p50, handler_p99          seconds until the role had the answer
//   wire_p50, wire_p99                seconds, the rest of the round trip
//   bytes_sent, bytes_received        by the student
//   credit_waits, credit_wait_time    calls that waited for credit or room, and their seconds
//
// Each row tells of what came since the row before; times are within 9 % (base/log_histogram.h).
// Threads: one.
class RpcMetrics {
 public:
  explicit RpcMetrics(const rpc::Agent& agent) : agent_(agent) {}
  // Every rank of `all` calls it, with a row of the same step. Collectives: one all-reduce and one
  // all-gather of some KiB; none in a group of one rank.
  void add_to(MetricsRow& row, parallel::Group& all);

 private:
  using ByName = std::map<std::string, rpc::MethodStats>;  // "<role>/<method>"
  ByName since_last_row();

  const rpc::Agent& agent_;
  ByName before_;
};

// The same of all peers together, as a recipe tells whose every micro-batch waits for answers:
//
//   rpc/bytes_per_token              sent and received for each token of the step
//   rpc/latency_p50, rpc/latency_p99 seconds, the round trip to the slowest peer, so far
//   rpc/inflight_bytes               on their way now
//
// Threads: one.
class PeerMetrics {
 public:
  explicit PeerMetrics(const rpc::Agent& agent) : agent_(agent) {}
  // What went to and came from the peers since the last call.
  double new_bytes();
  // `bytes`: new_bytes() of a step, `tokens`: its tokens, both over all ranks.
  void add_bytes_per_token(MetricsRow& row, double bytes, double tokens) const;
  // The others.
  void add_calls(MetricsRow& row) const;

 private:
  const rpc::Agent& agent_;
  uint64_t bytes_before_ = 0;
};

}  // namespace retort::recipes
