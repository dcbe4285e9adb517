// One process of scale_bench: some of the ranks of a run, a thread each, which do at the start what
// the ranks of a run do, and no model.
//
//   parent                       worker
//                           <-   "ready", once its serving ranks have published their addresses
//   "go"                    ->
//                           <-   one line of numbers (WorkerReport), everything still connected
//   "end"                   ->   it closes all and exits
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace retort::bench {

struct WorkerOptions {
  std::string part;              // "sessions" or "world"
  int64_t ranks = 0;             // of the run: for sessions one half students, one half teachers
  int64_t first = 0, count = 0;  // those of this process
  uint16_t store_port = 0;
  bool one_by_one = false;  // a look-up and a connection after the other, as a reference
  int64_t heartbeat_ms = 1000;

  std::vector<std::string> to_args() const;
  static WorkerOptions from_args(const std::vector<std::string>& args);
};

struct WorkerReport {
  double seconds = 0;                                 // of its slowest rank
  double rank_seconds = 0;                            // the sum over its ranks that connect
  int64_t sockets = 0, descriptors = 0, threads = 0;  // that the work added
  double core_seconds = 0;                            // likewise
  double mib = 0;                                     // likewise, resident

  std::string to_line() const;
  static WorkerReport from_line(const std::string& line);
};

// Runs as such a process.
int run_worker(const WorkerOptions& options);

}  // namespace retort::bench
