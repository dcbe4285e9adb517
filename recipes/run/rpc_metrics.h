// What a run's calls to its other roles cost, as metrics.
#pragma once

#include <map>
#include <string>

#include "parallel/group.h"
#include "recipes/run/metrics_writer.h"
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

}  // namespace retort::recipes
