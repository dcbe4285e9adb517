// What the ranks of one process of scale_bench do.
#pragma once

#include <memory>
#include <vector>

#include "bench/scale/worker.h"

namespace retort::bench {

class RankWork {
 public:
  virtual ~RankWork() = default;
  // All ranks at once, a thread each; the seconds of each one that connects to others. What one of
  // them meets is thrown.
  virtual std::vector<double> run() = 0;
  virtual void close() = 0;
};

// Every student's agent connects to every teacher's.
std::unique_ptr<RankWork> make_session_work(const WorkerOptions& options);
// The ranks make a world of one role, all of it data-parallel, and use its groups.
std::unique_ptr<RankWork> make_world_work(const WorkerOptions& options);
// kInvalidArgument for a part that there is not.
std::unique_ptr<RankWork> make_rank_work(const WorkerOptions& options);

}  // namespace retort::bench
