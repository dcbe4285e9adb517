#include "tests/recipes/run_support.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "models/safetensors.h"

extern char** environ;

namespace retort::test {

TemporaryFolder::TemporaryFolder()
    : path_(fs::temp_directory_path() / ("retort-test-" + random_hex(6))) {
  fs::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  if (testing::Test::HasFailure()) {
    std::fprintf(stderr, "kept: %s\n", path_.c_str());
    return;
  }
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Command::Command(std::vector<std::string> argv)
    : output_(fs::temp_directory_path() / ("retort-out-" + random_hex(6))),
      start_(std::chrono::steady_clock::now()) {
  std::vector<char*> args;
  for (auto& arg : argv)
    args.push_back(arg.data());
  args.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int failed = posix_spawnp(&pid_, args[0], &actions, &attributes, args.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (failed) throw Error(ErrorCode::kUnavailable, "cannot start " + argv[0]);
}

Command::~Command() {
  if (!reaped_) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
  }
  std::error_code ignored;
  fs::remove(output_, ignored);
}

bool Command::running() {
  if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

void Command::signal(int number) {
  if (running()) ::kill(pid_, number);
}

CommandResult Command::wait(std::chrono::seconds deadline) {
  CommandResult result;
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (running() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (running()) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, &status_, 0);
    reaped_ = true;
    result.exit_code = 124;
  } else {
    result.exit_code = WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  result.output = read_file(output_);
  return result;
}

std::string retort_binary() {
  const char* path = std::getenv("RETORT_BIN");
  RETORT_CHECK(path) << "RETORT_BIN is not set; run through ctest";
  return path;
}

CommandResult retort(std::vector<std::string> args, std::chrono::seconds deadline) {
  args.insert(args.begin(), retort_binary());
  return Command(std::move(args)).wait(deadline);
}

fs::path goldens() {
  const char* source = std::getenv("RETORT_SOURCE_DIR");
  RETORT_CHECK(source) << "RETORT_SOURCE_DIR is not set; run through ctest";
  return fs::path(source) / "tests" / "recipes" / "goldens";
}

std::vector<nlohmann::json> read_metrics(const fs::path& run) {
  std::istringstream lines(read_file(run / "metrics.jsonl"));
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);)
    rows.push_back(nlohmann::json::parse(line));
  return rows;
}

std::vector<double> column(const fs::path& run, const std::string& key) {
  std::vector<double> values;
  for (const auto& row : read_metrics(run))
    if (row.contains(key)) values.push_back(row.at(key).get<double>());
  return values;
}

double relative_difference(const fs::path& a, const fs::path& b) {
  const models::SafetensorsReader left(a), right(b);
  EXPECT_EQ(left.names(), right.names());
  double difference = 0, norm = 0;
  for (const auto& name : right.names()) {
    const at::Tensor x = left.get(name).to(at::kDouble), y = right.get(name).to(at::kDouble);
    difference += (x - y).square().sum().item<double>();
    norm += y.square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

std::string timeless_metrics(const fs::path& run) {
  std::string text;
  for (auto row : read_metrics(run)) {
    for (const char* key :
         {"step_time", "tokens_per_second", "teacher_wait_time", "reference_wait_time",
          "generation_time", "generator_wait_time", "weight_sync_time", "rpc/latency_p50",
          "rpc/latency_p99", "rpc/bytes_per_token", "rpc/inflight_bytes"})
      row.erase(key);
    text += row.dump() + "\n";
  }
  return text;
}

fs::path write_recipe(const fs::path& folder, const GoldenRecipe& r) {
  std::ostringstream yaml;
  yaml << "recipe: " << (r.teacher.empty() ? "sft" : "distill")
       << "\noutput_dir: " << (folder / "run").string() << "\nseed: 3\n"
       << "roles:\n  student:\n    model: " << (goldens() / r.student).string()
       << "\n    world: {dp: " << r.dp << ", threads: 1" << r.student_world << "}\n";
  if (!r.teacher.empty())
    yaml << "  teacher:\n    model: " << (goldens() / r.teacher).string() << r.teacher_extra
         << "\n    world: {dp: " << r.teacher_replicas << ", threads: 1" << r.teacher_world
         << "}\n";
  yaml << "data:\n  train: [{path: " << (goldens() / "rows.jsonl").string()
       << "}]\n  max_length: 64\n  packing: false\n"
       << "  shuffle: false\n"
       << "train:\n  max_steps: " << r.steps << "\n  per_device_train_batch_size: " << r.rows
       << "\n  gradient_accumulation_steps: " << r.accumulation
       << "\n  learning_rate: 1.0e-3\n  lr_scheduler_type: constant\n  save_steps: 0\n"
       << r.train_extra;
  if (!r.teacher.empty()) {
    yaml << "distill:\n  teachers: [{role: teacher}]\n";
    for (const auto& [key, value] : r.distill)
      yaml << "  " << key << ": " << value << "\n";
  }
  yaml << r.extra;
  fs::create_directories(folder);
  const fs::path path = folder / "recipe.yaml";
  std::ofstream(path) << yaml.str();
  return path;
}

}  // namespace retort::test
