#include "recipes/run/student/told_metrics.h"

#include <string>
#include <utility>

#include "base/log.h"

namespace retort::recipes {

void ToldMetrics::write(const MetricsRow& row) {
  writer_.write(row);
  tell(row.step);
}

void ToldMetrics::flush(int64_t step) {
  if (told_ == 0) return;
  writer_.flush();
  tell(step);
}

void ToldMetrics::tell(int64_t step) {
  const int64_t waiting = writer_.num_waiting_rows();
  const int64_t before = std::exchange(told_, waiting);
  if (waiting == before) return;
  std::string said;
  if (waiting > 0)
    said.append("disk full: ")
        .append(std::to_string(waiting))
        .append(" rows wait for metrics.jsonl and tensorboard; free space for ")
        .append(context_.run_folder.string());
  else
    said = "the disk has room again: all rows that waited are written";

  // The log has the first and the last word of it, so that a disk which stays full does not fill
  // the log.
  if (before == 0 || waiting == 0) {
    RETORT_LOG(kWarning) << said;
  }
  context_.warn("training", step, said);
}

}  // namespace retort::recipes
