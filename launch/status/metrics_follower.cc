#include "launch/status/metrics_follower.h"

#include <exception>
#include <utility>

#include "base/log.h"

namespace retort::launch {

MetricsFollower::MetricsFollower(std::filesystem::path path, Duration patience)
    : MetricsFollower(
          [tail = std::make_shared<MetricsTail>(std::move(path))] { return tail->poll(); },
          patience) {}

MetricsFollower::MetricsFollower(std::function<std::vector<LoggedStep>()> poll, Duration patience)
    : patience_(patience), rows_(std::make_shared<Rows>(Rows{std::move(poll), {}})) {}

std::vector<LoggedStep> MetricsFollower::poll() {
  std::vector<LoggedStep> before;
  if (thread_.idle()) {
    before = std::exchange(rows_->found, {});  // of a look that took longer than its caller waited
    thread_.start([rows = rows_] {
      try {
        rows->found = rows->poll();
      } catch (const std::exception& e) {
        RETORT_LOG(kWarning) << "cannot follow metrics.jsonl: " << e.what();
      }
    });
  }
  if (!thread_.wait_a_while(patience_)) return before;
  for (LoggedStep& row : std::exchange(rows_->found, {}))
    before.push_back(std::move(row));
  return before;
}

}  // namespace retort::launch
