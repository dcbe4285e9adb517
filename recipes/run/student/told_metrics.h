// The rows of a run, and word of those that a full disk keeps waiting.
#pragma once

#include <cstdint>

#include "recipes/run/metrics/metrics_writer.h"
#include "recipes/run/rank/rank_context.h"

namespace retort::recipes {

// Writes rows, and tells whoever watches the run how many wait for room. The log gets the first and
// the last word of it, status.json each number.
// Threads: one at a time. Errors: those of MetricsWriter.
class ToldMetrics {
 public:
  // `context` must outlive it.
  explicit ToldMetrics(const RankContext& context)
      : context_(context), writer_(context.run_folder) {}

  void write(const MetricsRow& row);
  // Tries again to write what waits, as after a checkpoint that took the place of an older one.
  void flush(int64_t step);

 private:
  void tell(int64_t step);

  const RankContext& context_;
  MetricsWriter writer_;
  int64_t told_ = 0;  // rows that wait
};

}  // namespace retort::recipes
