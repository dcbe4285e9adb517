// A run killed or stopped at a random moment and resumed gives the uninterrupted run's metrics bit
// for bit. RETORT_TRIALS sets how often (default 2 of each; the release figure is 20).
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

int trials() {
  const char* text = std::getenv("RETORT_TRIALS");
  return text ? std::atoi(text) : 2;
}

GoldenRecipe recipe() {
  GoldenRecipe r{.teacher = "teacher", .rows = 2, .steps = 60};
  r.distill = {{"payload", "topk"}, {"loss_top_k", "8"}, {"prefetch", "2"}};
  r.extra = "";
  r.train_extra = "  save_total_limit: 2\n";
  return r;
}

// save_steps is written as 0 by write_recipe; checkpoints every 7 steps are asked for on the
// command line.
std::vector<std::string> launch(const fs::path& path, bool resume, bool async = false) {
  std::vector<std::string> args{retort_binary(), "launch", path.string(), "train.save_steps=7"};
  if (async) args.push_back("train.async_save=true");
  if (resume) args.push_back("--resume");
  return args;
}

// No process of the run may be left: their command lines name the run folder.
bool any_process_names(const std::string& text) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::stringstream line;
    line << file.rdbuf();
    if (line.str().find(text) != std::string::npos && std::stoi(pid) != ::getpid()) return true;
  }
  return false;
}

bool gone_within(const std::string& text, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (any_process_names(text))
    if (std::chrono::steady_clock::now() > end)
      return false;
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return true;
}

// The run that nobody interrupts, once for all signals.
class Interrupted : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    whole_ = new TemporaryFolder;
    Command whole(launch(write_recipe(whole_->path(), recipe()), false));
    const auto result = whole.wait(std::chrono::seconds(120));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    seconds_ = result.seconds;
  }
  static void TearDownTestSuite() { delete whole_; }

  static TemporaryFolder* whole_;
  static double seconds_;  // that it took
};
TemporaryFolder* Interrupted::whole_ = nullptr;
double Interrupted::seconds_ = 0;

TEST_P(Interrupted, ResumesBitForBit) {
  TemporaryFolder folder;
  const std::string expected = timeless_metrics(*whole_ / "run");
  const fs::path final = *whole_ / "run/final";
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  for (int trial = 0; trial < trials(); ++trial) {
    const fs::path run = folder / ("trial" + std::to_string(trial));
    const fs::path path = write_recipe(run, recipe());
    const double delay = std::uniform_real_distribution<double>(0.05, seconds_)(random);
    int interruptions = 0;
    for (bool resume = false;; resume = true) {
      Command command(launch(path, resume && fs::exists(run / "run"), /*async=*/trial % 2 == 1));
      if (interruptions < 2) {
        std::this_thread::sleep_for(
            std::chrono::duration<double>(interruptions == 0 ? delay : delay / 2));
        command.signal(GetParam());
        ++interruptions;
      }
      const auto result = command.wait(std::chrono::seconds(60));
      ASSERT_NE(result.exit_code, 124) << "the run hung\n" << result.output;
      ASSERT_TRUE(gone_within(run.string(), std::chrono::seconds(20)))
          << "a process of the run was left behind";
      if (result.exit_code == 0) break;
      // A process that is told to stop before its first instruction of ours has nothing to save;
      // the launcher says so.
      const bool too_early =
          result.output.find("ended before it could save a checkpoint") != std::string::npos;
      // A launcher that has not started anything yet simply ends by the signal.
      const bool begun = result.output.find("started, pid") != std::string::npos;
      const int stopped = begun && GetParam() == SIGTERM ? 4 : 128 + GetParam();
      ASSERT_EQ(result.exit_code, too_early ? 1 : stopped) << result.output;

      // Whoever asks later is told the same.
      if (!begun || GetParam() != SIGTERM) continue;
      const auto told = retort({"status", (run / "run").string()});
      EXPECT_EQ(told.exit_code, result.exit_code) << told.output;
    }
    EXPECT_EQ(timeless_metrics(run / "run"), expected)
        << "trial " << trial << ", signal after " << delay << " s";
    for (const char* file : {"model.safetensors", "state/optimizer.safetensors", "state/loop.json"})
      EXPECT_TRUE(read_file(run / "run/final" / file) == read_file(final / file))
          << "trial " << trial << ", " << file;
  }
}
INSTANTIATE_TEST_SUITE_P(Signals, Interrupted, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& info) {
                           return info.param == SIGKILL ? "SIGKILL" : "SIGTERM";
                         });

}  // namespace
}  // namespace retort::test
