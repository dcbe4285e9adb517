// What Prometheus reads of a run.
#include "launch/status/metrics_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <sstream>

namespace retort::launch {
namespace {

const RunStatus::Time kNow{std::chrono::seconds(100)};

RunStatus status() {
  RunStatus status{.run = "my \"run\"", .recipe = "sft"};
  status.state = RunState::kRunning;
  status.step = 40;
  status.max_steps = 200;
  status.fraction = 0.2;
  status.processes.push_back({.role = "student",
                              .rank = 1,
                              .host = "gpu1",
                              .state = ProcessState::kTraining,
                              .step = 40,
                              .last_report = RunStatus::Time(std::chrono::seconds(97)),
                              .restarts = 2});
  return status;
}

TEST(MetricsPage, HasEveryNumberOfTheRun) {
  const LoggedStep row{.step = 40,
                       .values = {{"loss", 1.5}, {"rewards/chosen", -0.25}, {"kl", std::nan("")}}};
  const LoggedStep eval{.step = 20, .values = {{"eval_loss", 2.5}, {"step", 20}}};
  const std::string page = metrics_page(status(), kNow, row, eval);
  const std::string of = R"({run="my \"run\"")";
  const std::string student = of + R"(,role="student",rank="1",host="gpu1")";
  for (const std::string& line : std::vector<std::string>{
           "retort_run_state" + of + R"(,state="running"} 1)",
           "retort_run_state" + of + R"(,state="done"} 0)", "retort_step" + of + "} 40",
           "retort_max_steps" + of + "} 200", "retort_fraction" + of + "} 0.2",
           "retort_process_state" + student + R"(,state="training"} 1)",
           "retort_process_restarts" + student + "} 2",
           "retort_process_report_age_seconds" + student + "} 3",
           "retort_logged_loss" + of + "} 1.5", "retort_logged_rewards_chosen" + of + "} -0.25",
           "retort_logged_kl" + of + "} NaN", "retort_logged_eval_loss" + of + "} 2.5"})
    EXPECT_NE(page.find(line + "\n"), std::string::npos) << line << "\n" << page;
}

// Each name has its type once, before its samples, which follow each other; no name is odd.
TEST(MetricsPage, HasTheFormThatPrometheusReads) {
  RunStatus two = status();
  two.processes.push_back({.role = "teacher", .rank = 0, .host = "gpu2"});
  std::istringstream page(metrics_page(two, kNow, LoggedStep{.values = {{"rpc/a b/p99", 1}}}, {}));
  const std::regex type(R"(# TYPE (retort_[a-z0-9_]+) gauge)");
  const std::regex sample(R"rx((retort_[a-z0-9_]+)\{[a-z]+=".*"\} (NaN|[-+0-9.e]+))rx");
  std::string name;
  std::vector<std::string> names;
  for (std::string line; std::getline(page, line);) {
    std::smatch match;
    if (std::regex_match(line, match, type)) {
      name = match[1];
      EXPECT_EQ(std::find(names.begin(), names.end(), name), names.end()) << line;
      names.push_back(name);
      continue;
    }
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    EXPECT_EQ(match[1], name) << line;
  }
  EXPECT_GT(names.size(), 6u);
}

}  // namespace
}  // namespace retort::launch
