#include "tests/recipes/run_support/killed_run.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "base/file.h"

namespace retort::test {
namespace {

int kill_trials() {
  const char* text = std::getenv("RETORT_TRIALS");
  return text ? std::atoi(text) : 1;
}

// After so many steps, and a little later: inside a step, a checkpoint, a generation, or at the
// end.
struct Moment {
  int64_t rows, delay_ms;
};

void kill_at(const Moment& moment, Command& command, const fs::path& place, bool launcher,
             int64_t rank) {
  wait_until([&] {
    return static_cast<int64_t>(metrics_rows(place / "run")) >= moment.rows || !command.running();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(moment.delay_ms));
  if (launcher) return command.signal(SIGKILL);

  // A student that has ended is not waited for.
  int pid = -1;
  wait_until([&] {
    if (command.running()) pid = role_process(place, "student", rank, std::chrono::seconds(0));
    return pid > 0 || !command.running();
  });
  if (pid > 0) ::kill(pid, SIGKILL);
}

// Of the model or the adapter, and of the optimizer.
void expect_same_tensors(const fs::path& run, const fs::path& expected, const std::string& story) {
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(expected / "final")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const fs::path file = entry.path().lexically_relative(expected);
    EXPECT_TRUE(read_file(run / file) == read_file(expected / file)) << file << story;
  }
  EXPECT_GE(files, 2u) << "or nothing was compared";
}

void expect_same_end(const fs::path& run, const fs::path& expected, const std::string& story) {
  EXPECT_EQ(timeless_metrics(run), timeless_metrics(expected)) << story;
  expect_same_tensors(run, expected, story);
  if (fs::exists(expected / "samples")) {
    EXPECT_EQ(read_samples(run), read_samples(expected)) << story;
  }
  if (!fs::exists(expected / "kept")) return;
  for (const auto& entry : fs::directory_iterator(expected / "kept")) {
    if (entry.path().extension() != ".jsonl") continue;
    const fs::path file = entry.path().lexically_relative(expected);
    EXPECT_EQ(read_lines(run / file), read_lines(expected / file)) << file << story;
  }
}

// Two kills in `place`, then a run to the end; `story` gets what was done. `launcher_first`: the
// launcher is killed first, and then the student.
void run_with_kills(const KilledRun& killed, const TemporaryFolder& folder, const fs::path& place,
                    bool launcher_first, std::mt19937_64& random, std::string& story) {
  const auto below = [&](int64_t end) {
    return std::uniform_int_distribution<int64_t>(0, end - 1)(random);
  };
  const fs::path run = place / "run";
  std::vector<std::string> first = killed.launch(folder, place);
  first.insert(first.begin(), retort_binary());
  for (int kills = 0;; ++kills) {
    std::vector<std::string> argv = first;
    if (fs::exists(run / "recipe.resolved.yaml")) argv.push_back("--resume");
    Command command(argv);
    const bool launcher = (kills % 2 == 1) != launcher_first;
    if (kills < 2) {
      const Moment moment{.rows = below(killed.steps), .delay_ms = below(60)};
      story += " after " + std::to_string(moment.rows) + " rows and " +
               std::to_string(moment.delay_ms) + " ms";
      kill_at(moment, command, place, launcher, killed.rank);
    }

    const auto result = command.wait();
    ASSERT_NE(result.exit_code, 124) << "the run hung" << story << "\n" << result.output;
    ASSERT_TRUE(all_gone(run.string())) << "a process was left behind" << story;
    if (result.exit_code == 0) return;
    ASSERT_LT(kills, 2) << story << "\n" << result.output;
    if (launcher) {
      ASSERT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
      continue;
    }
    const std::string student = "student/" + std::to_string(killed.rank);
    ASSERT_EQ(result.exit_code, 1) << result.output;
    ASSERT_NE(result.output.find(student + " failed first"), std::string::npos) << result.output;
  }
}

}  // namespace

void expect_same_after_kills(const KilledRun& killed) {
  TemporaryFolder folder;
  const auto whole = retort(killed.launch(folder, folder / "whole"), std::chrono::seconds(120));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  std::mt19937_64 random(std::hash<std::string>()(killed.name));
  for (int trial = 0; trial < kill_trials(); ++trial) {
    const fs::path place = folder / ("trial" + std::to_string(trial));
    std::string story;
    run_with_kills(killed, folder, place, trial % 2 == 1, random, story);
    if (testing::Test::HasFatalFailure()) return;
    expect_same_end(place / "run", folder / "whole/run", story);
  }
}

}  // namespace retort::test
