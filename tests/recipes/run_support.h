// Running the real program on nano checkpoints: commands with a deadline, recipes as text, what a
// run wrote.
#pragma once

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace retort::test {

namespace fs = std::filesystem;

// A folder of its own, removed at the end unless the test failed.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct CommandResult {
  int exit_code = -1;  // 128 + signal if it was killed by one
  std::string output;  // stdout and stderr together
  double seconds = 0;
};

// A command that runs in its own process group. The destructor kills the group.
class Command {
 public:
  explicit Command(std::vector<std::string> argv);
  ~Command();
  Command(const Command&) = delete;
  int pid() const { return pid_; }
  bool running();
  void signal(int number);  // to the command's process alone
  // Waits; after `deadline` the whole group is killed and exit_code is 124.
  CommandResult wait(std::chrono::seconds deadline = std::chrono::seconds(60));

 private:
  int pid_ = -1, status_ = 0;
  bool reaped_ = false;
  fs::path output_;
  std::chrono::steady_clock::time_point start_;
};

// `retort` with these arguments.
CommandResult retort(std::vector<std::string> args,
                     std::chrono::seconds deadline = std::chrono::seconds(60));
std::string retort_binary();
fs::path goldens();

// metrics.jsonl, one object per row.
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
