// Running the real program on nano checkpoints: recipes as text, and what a run wrote.
#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/temporary_folder.h"

namespace retort::test {

namespace fs = std::filesystem;

// `retort` with these arguments.
CommandResult retort(std::vector<std::string> args,
                     std::chrono::seconds deadline = std::chrono::seconds(60));
std::string retort_binary();
fs::path goldens();

// metrics.jsonl, one object per row. A failure of the test for a name that docs/metrics.md has not.
std::vector<nlohmann::json> read_metrics(const fs::path& run);
// The rows that have this key, in order.
std::vector<double> column(const fs::path& run, const std::string& key);
// Of all tensors of two checkpoints as one vector each: the 2-norm of the difference by that of
// `b`. A failure of the test if their names differ.
double relative_difference(const fs::path& a, const fs::path& b);
// metrics.jsonl without what depends on the clock (times, rates, latencies, bytes): what must
// repeat bit for bit.
std::string timeless_metrics(const fs::path& run);

// A recipe on the golden rows: 5 steps of 4 rows in file order, AdamW 1e-3, no schedule, clipping
// at 1.
struct GoldenRecipe {
  std::string student = "qwen3";
  std::string teacher;  // "": sft
  int64_t dp = 1, accumulation = 1, rows = 4, steps = 5, teacher_replicas = 1;
  // more lines of `roles.teacher`, as "\n    key: value"
  std::string teacher_extra;
  std::map<std::string, std::string> distill;  // key -> YAML value
  std::string extra;                           // more top-level YAML
  std::string train_extra;                     // more lines of `train:`, two spaces indented
  std::string student_world, teacher_world;    // more of their `world:`, as ", tp: 2"
};
// Writes the recipe beside its run folder and returns the recipe's path; the run goes to
// folder/run.
fs::path write_recipe(const fs::path& folder, const GoldenRecipe& recipe);

}  // namespace retort::test
