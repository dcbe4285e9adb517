// metrics.jsonl is followed without being held up by its file system.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/units.h"
#include "launch/status/metrics_tail.h"
#include "launch/writers/disk_thread.h"

namespace retort::launch {

// A MetricsTail whose file a thread of its own reads.
// Threads: one caller.
class MetricsFollower {
 public:
  // Rows that are there already are skipped. `patience`: how long the file system may take; once,
  // while it does not answer.
  MetricsFollower(std::filesystem::path path, Duration patience);
  // Follows the rows that `poll` gives, on the thread.
  MetricsFollower(std::function<std::vector<LoggedStep>()> poll, Duration patience);
  // The whole rows that came since, unless the file system has not said yet: then the next call has
  // them.
  std::vector<LoggedStep> poll();

 private:
  struct Rows {
    std::function<std::vector<LoggedStep>()> poll;
    std::vector<LoggedStep> found;
  };
  const Duration patience_;
  std::shared_ptr<Rows> rows_;  // the thread's, while it is not idle
  DiskThread thread_;
};

}  // namespace retort::launch
