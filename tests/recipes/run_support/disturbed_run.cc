#include "tests/recipes/run_support/disturbed_run.h"

#include <gtest/gtest.h>

namespace retort::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(120);
constexpr int kRuns = 5;

}  // namespace

int signal_role(Command& run, const fs::path& folder, const RoleSignal& signal, int before) {
  int pid = -1;
  const auto found = [&] {
    if (metrics_rows(folder / "run") < signal.rows) return false;
    pid = role_process(folder, signal.role, signal.rank, std::chrono::seconds(0));
    return pid > 0 && pid != before;
  };
  // A run that has ended leaves none that could be another program's by now.
  wait_until([&] { return !run.running() || found(); }, kDeadline);
  if (pid <= 0 || pid == before || !run.running()) return -1;
  return ::kill(pid, signal.number) == 0 ? pid : -1;
}

DisturbedRun disturb(const fs::path& folder, size_t steps, const std::vector<RoleSignal>& signals,
                     const std::function<std::vector<std::string>(const fs::path&)>& launch) {
  for (int tried = 1;; ++tried) {
    const fs::path place = folder / ("disturbed" + std::to_string(tried));
    std::vector<std::string> argv = launch(place);
    argv.insert(argv.begin(), retort_binary());
    Command run(argv);

    int pid = -1;
    size_t sent = 0;
    for (const RoleSignal& signal : signals) {
      pid = signal_role(run, place, signal, pid);
      // After its last step there is nothing that a signal could disturb.
      if (pid < 0 || metrics_rows(place / "run") >= steps) break;
      ++sent;
    }
    CommandResult result = run.wait(kDeadline);
    if (sent == signals.size()) return {place, std::move(result)};

    EXPECT_EQ(result.exit_code, 0) << "it was not disturbed yet\n" << result.output;
    if (sent > 0) {
      EXPECT_NE(result.output.find("was started again"), std::string::npos) << result.output;
    }
    if (testing::Test::HasFailure()) return {place, std::move(result)};
    if (tried < kRuns) continue;
    ADD_FAILURE() << "each of " << kRuns << " runs was over before the signal came\n"
                  << result.output;
    return {place, std::move(result)};
  }
}

}  // namespace retort::test
