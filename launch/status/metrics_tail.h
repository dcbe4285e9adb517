// Follows a run's metrics.jsonl while another process writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace retort::launch {

struct LoggedStep {
  int64_t step = 0;
  std::map<std::string, double> values;  // every number of the row; null is NaN
};

class MetricsTail {
 public:
  // Rows that are there already are skipped.
  explicit MetricsTail(std::filesystem::path path);
  // The whole rows that came since; never waits. A missing file has none.
  std::vector<LoggedStep> poll();

 private:
  std::filesystem::path path_;
  int64_t offset_ = 0;
};

}  // namespace retort::launch
