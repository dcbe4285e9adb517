// A run whose launcher is killed goes on (launch.launcher_lost: continue), another launcher takes
// it over, and what it computes is that of a run that nobody disturbed.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "base/file.h"
#include "base/private_file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(120);
constexpr auto kWait = std::chrono::seconds(60);
// Of a run that one launcher after another takes over, and of the others. Those that are over
// before they are disturbed are tried again.
constexpr int64_t kLongRun = 600, kShortRun = 300;

class Attach : public testing::Test {
 protected:
  Attach() { write_private_file(folder_ / "secret", "0123456789abcdef0123456789abcdef\n"); }
  ~Attach() override {
    EXPECT_TRUE(wait_until([&] { return all_gone(run()); }, kWait));
  }

  // The folder of a run of so many steps that nobody disturbs; one for all tests.
  static const fs::path& undisturbed(int64_t steps) {
    const auto [found, is_new] = undisturbed_.try_emplace(steps);
    if (is_new) {
      const fs::path place = *whole_ / std::to_string(steps);
      const auto result =
          retort({"launch", recipe(place, steps), "train.save_steps=20"}, kDeadline);
      EXPECT_EQ(result.exit_code, 0) << result.output;
      found->second = place / "run";
    }
    return found->second;
  }
  static void SetUpTestSuite() { whole_ = new TemporaryFolder; }
  static void TearDownTestSuite() {
    delete whole_;
    undisturbed_.clear();
  }
  void launch(int64_t steps) {
    steps_ = static_cast<size_t>(steps);
    place_ = "disturbed" + std::to_string(++launches_);
    launcher_.emplace(std::vector<std::string>{
        retort_binary(), "launch", recipe(folder_ / place_, steps), "train.save_steps=20",
        "launch.launcher_lost=continue", "launch.secret_file=" + (folder_ / "secret").string(),
        "launch.max_restarts=1", "rpc.heartbeat_interval=200ms", "rpc.peer_timeout=6s"});
    wait_for_rows(5);
  }
  // Until `met` says that a run was as far as it should be; others, where this test was held up,
  // were over before.
  void launch_until(int64_t steps, const std::function<bool()>& met) {
    for (int tried = 0; tried < 5; ++tried) {
      launch(steps);
      ASSERT_FALSE(HasFailure());
      const bool is_met = met();
      ASSERT_FALSE(HasFailure());
      if (is_met) return;
      ASSERT_TRUE(all_gone(run()));
      ASSERT_EQ(metrics_rows(run()), steps_) << "neither over nor as far";
    }
    FAIL() << "each run was over too early";
  }
  void lose_launcher() {
    launcher_->signal(SIGKILL);
    launcher_->wait();
  }
  Command attach() { return Command({retort_binary(), "launch", "--attach", run()}); }
  // Until all processes have found it; false: the run was over before.
  bool wait_for_all(Command& launcher) {
    const auto found = [&] {
      const auto status = nlohmann::json::parse(read_file(fs::path(run()) / "status.json"));
      return status.at("launcher").at("pid") == launcher.pid() &&
             status.at("processes").size() == 4 &&
             std::ranges::none_of(status.at("processes"), [](const nlohmann::json& process) {
               return process.at("state") == "starting";
             });
    };
    const auto found_or_over = [&] { return found() || !launcher.running(); };
    EXPECT_TRUE(wait_until(found_or_over, kWait)) << launcher.output();
    return launcher.running() && found();
  }
  // False: the run was over before.
  bool wait_for_second_life(Command& launcher, const std::string& role, int64_t rank) {
    const auto is_there = [&](const nlohmann::json& process) {
      const std::string state = process.at("state");
      return process.at("role") == role && process.at("rank") == rank &&
             process.at("restarts") == 1 && (state == "ready" || state == "serving");
    };
    const auto found = [&] {
      const auto status = nlohmann::json::parse(read_file(fs::path(run()) / "status.json"));
      return std::ranges::any_of(status.at("processes"), is_there);
    };
    EXPECT_TRUE(wait_until([&] { return found() || !launcher.running(); }, kWait))
        << launcher.output();
    return launcher.running() && found();
  }
  void wait_for_more_rows(size_t more) {
    wait_for_rows(std::min(metrics_rows(run()) + more, steps_));
  }
  void wait_for_rows(size_t rows) {
    ASSERT_TRUE(wait_until([&] { return metrics_rows(run()) >= rows; }, kWait));
  }
  // False: the run was over before.
  bool kill_rank(const std::string& role, int64_t rank) {
    const int pid = role_process(folder_ / place_, role, rank, std::chrono::seconds(0));
    return !is_over() && pid > 0 && ::kill(pid, SIGKILL) == 0;
  }
  // But for what follows the last step.
  bool is_over() const { return metrics_rows(run()) >= steps_; }
  void expect_undisturbed_numbers() const {
    const fs::path& whole = undisturbed(static_cast<int64_t>(steps_));
    EXPECT_EQ(timeless_metrics(run()), timeless_metrics(whole));
    EXPECT_TRUE(read_file(fs::path(run()) / "final/model.safetensors") ==
                read_file(whole / "final/model.safetensors"));
  }
  std::string run() const { return (folder_ / place_ / "run").string(); }

  TemporaryFolder folder_;
  std::optional<Command> launcher_;

 private:
  std::string place_ = "disturbed";
  int launches_ = 0;
  size_t steps_ = 0;

  // Two student ranks and two teachers.
  static std::string recipe(const fs::path& place, int64_t steps) {
    return write_recipe(place, {.teacher = "teacher",
                                .dp = 2,
                                .rows = 2,
                                .steps = steps,
                                .teacher_replicas = 2,
                                .distill = {{"payload", "topk"}}})
        .string();
  }

  static TemporaryFolder* whole_;
  static std::map<int64_t, fs::path> undisturbed_;
};
TemporaryFolder* Attach::whole_ = nullptr;
std::map<int64_t, fs::path> Attach::undisturbed_;

TEST_F(Attach, TakesOverARunAndStartsWhatItLosesAgain) {
  CommandResult result;
  launch_until(kLongRun, [&] {
    lose_launcher();
    wait_for_more_rows(20);
    Command second = attach();
    // A third one knows that process by its second life.
    if (!wait_for_all(second) || !kill_rank("teacher", 1) ||
        !wait_for_second_life(second, "teacher", 1)) {
      second.wait(kDeadline);
      return false;
    }
    EXPECT_NE(second.output().find("it is started again, 1 of 3 times"), std::string::npos)
        << second.output();
    second.signal(SIGKILL);
    second.wait();
    Command third = attach();
    const bool found = wait_for_all(third);
    result = third.wait(kDeadline);
    return found;
  });
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output.find("lost"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("done: " + run() + "/final"), std::string::npos) << result.output;
  expect_undisturbed_numbers();
}

// A replica that is lost meanwhile is not started again; the other one answers for it.
TEST_F(Attach, IsNotNeededForARunToGetDone) {
  launch_until(kShortRun, [&] {
    lose_launcher();
    return kill_rank("teacher", 1);
  });
  ASSERT_TRUE(wait_until([&] { return all_gone(run()); }, kWait));
  expect_undisturbed_numbers();
  const auto late = attach().wait();
  EXPECT_EQ(late.exit_code, 2);
  EXPECT_NE(late.output.find("no process of " + run() + " trains"), std::string::npos)
      << late.output;
}

TEST_F(Attach, StopsARunWithACheckpointThatGoesOn) {
  CommandResult stopped;
  launch_until(kShortRun, [&] {
    lose_launcher();
    Command second = attach();
    const bool found = wait_for_all(second) && metrics_rows(run()) + 1 < size_t{kShortRun};
    if (found) second.signal(SIGTERM);
    stopped = second.wait(kDeadline);
    return found;
  });
  ASSERT_EQ(stopped.exit_code, 4) << stopped.output;
  EXPECT_LT(metrics_rows(run()), size_t{kShortRun});
  EXPECT_NE(stopped.output.find("--resume"), std::string::npos) << stopped.output;

  const auto resumed = retort({"launch", run() + "/recipe.resolved.yaml", "--resume"}, kDeadline);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  expect_undisturbed_numbers();
}

// As the launcher before would have (launch.max_restarts).
TEST_F(Attach, GoesOnFromACheckpointAfterALostStudent) {
  CommandResult result;
  launch_until(kShortRun, [&] {
    wait_for_rows(25);
    lose_launcher();
    Command second = attach();
    const bool killed = wait_for_all(second) && kill_rank("student", 1);
    result = second.wait(kDeadline);
    return killed;
  });
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("goes on from its last checkpoint, 1 of 1"), std::string::npos)
      << result.output;
  expect_undisturbed_numbers();
}

TEST_F(Attach, IsRefusedWhileALauncherLives) {
  launch(100000);
  const auto second = attach().wait();
  EXPECT_EQ(second.exit_code, 3);
  EXPECT_NE(second.output.find("the run has a launcher, which lives"), std::string::npos)
      << second.output;
  launcher_->signal(SIGTERM);
  EXPECT_EQ(launcher_->wait(kDeadline).exit_code, 4);
  const auto late = attach().wait();
  EXPECT_EQ(late.exit_code, 2);
  EXPECT_NE(late.output.find("has ended, with exit code 4"), std::string::npos) << late.output;
}

TEST_F(Attach, IsRefusedForARunThatEndsWithItsLauncher) {
  const fs::path& whole = undisturbed(kShortRun);
  ASSERT_FALSE(HasFailure());
  const auto second = retort({"launch", "--attach", whole.string()});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_NE(second.output.find("launch.launcher_lost: stop"), std::string::npos) << second.output;
}

}  // namespace
}  // namespace retort::test
