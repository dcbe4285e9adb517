// What a run reports: one JSON object per logged step in metrics.jsonl, and the same numbers as
// TensorBoard scalars.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "recipes/run/metrics/event_file.h"
#include "recipes/run/metrics/patient_files.h"

namespace retort::recipes {

// The numbers of one step, in the order in which they are written ("loss", "grad_norm",
// "eval_loss", "rpc/latency_p50", ...); `step` itself comes first by itself. NaN and infinities are
// written as null.
struct MetricsRow {
  int64_t step = 0;
  std::vector<std::pair<std::string, std::variant<int64_t, double>>> values;

  MetricsRow& add(std::string name, int64_t value) { return push(std::move(name), value); }
  MetricsRow& add(std::string name, double value) { return push(std::move(name), value); }

 private:
  MetricsRow& push(std::string name, std::variant<int64_t, double> value) {
    values.emplace_back(std::move(name), value);
    return *this;
  }
};

// Appends to <output_dir>/metrics.jsonl (one write(2) a row, so a reader never sees half a row of a
// living writer) and to <output_dir>/tensorboard/. One process of a run makes one: rank 0 of the
// driving role. Used by one thread. Errors and full disks: those of PatientFile.
class MetricsWriter {
 public:
  explicit MetricsWriter(const std::filesystem::path& output_dir);
  void write(const MetricsRow& row);
  // Writes what waits for room on the disk.
  void flush();
  // Counts the rows that wait for metrics.jsonl, or for TensorBoard's file where more wait there.
  int64_t num_waiting_rows() const;

 private:
  PatientFile rows_;
  EventFile events_;
};

// Before a run continues at `step`: rows of later steps, and a row cut short by a crash, move from
// metrics.jsonl to the end of metrics.jsonl.1; the event files lose the same steps. Nothing may be
// writing. Idempotent. kCorrupt naming the line if a row other than the last is not a JSON object
// with a step.
void cut_back_metrics(const std::filesystem::path& output_dir, int64_t step);

}  // namespace retort::recipes
