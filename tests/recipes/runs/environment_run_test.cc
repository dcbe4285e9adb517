// Whole grpo runs whose completions are episodes with an environment.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/recipes/run_support/disturbed_run.h"
#include "tests/recipes/run_support/environment_support.h"

namespace retort::test {
namespace {

// Both kills come while the run has steps to go.
constexpr int64_t kSteps = 16;
const std::vector<RoleSignal> kLosses{{.rows = 2, .role = "tools"},
                                      {.rows = 6, .role = "generator"}};

// The run that nothing disturbs is made once, for all tests.
class EnvironmentRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_.emplace();
    write_environment(folder_->path());
    undisturbed_ = retort(launch(*folder_ / "undisturbed"), std::chrono::seconds(120));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override { ASSERT_EQ(undisturbed_.exit_code, 0) << undisturbed_.output; }

  static std::vector<std::string> launch(const fs::path& folder) {
    return launch_with_environment(folder_->path(), folder, {.steps = kSteps});
  }
  static fs::path undisturbed_run() { return *folder_ / "undisturbed/run"; }

  static inline std::optional<TemporaryFolder> folder_;
  static inline CommandResult undisturbed_;
};

TEST_F(EnvironmentRun, TrainsOnWhatTheModelSaidInSeveralTurns) {
  const auto samples = read_samples(undisturbed_run());
  ASSERT_EQ(samples.size(), static_cast<size_t>(kSteps) * 8);

  size_t answered = 0;  // episodes of several turns
  for (const auto& [key, sample] : samples) {
    // What the environment said has no probability.
    const auto& logps = sample.at("sampling_logps");
    ASSERT_EQ(logps.size(), sample.at("token_ids").size());
    const std::vector<bool> own = own_tokens(sample);
    for (size_t place = 0; place < own.size(); ++place)
      EXPECT_EQ(logps.at(place).is_null(), !own[place]) << place;
    answered += sample.at("spans").size() > 1;
    EXPECT_EQ(sample.at("reward"), sample.at("rewards").at("environment"));
    EXPECT_EQ(sample.at("prompt_ids").back(), 60) << "the prompt for the model's first turn";

    // The text is of these: the row's message, the environment's, and the beginning of a turn.
    const auto prompt = sample.at("prompt").get<std::string>();
    size_t messages = 0;
    for (size_t at = prompt.find("w60"); at != std::string::npos; at = prompt.find("w60", at + 1))
      ++messages;
    EXPECT_EQ(messages, 3u) << prompt;
  }
  EXPECT_GT(answered, 0u) << "or the test shows nothing";

  for (const double turns : column(undisturbed_run(), "episodes/mean_turns")) {
    EXPECT_GE(turns, 1);
    EXPECT_LE(turns, 3);
  }
  EXPECT_EQ(column(undisturbed_run(), "environment/turns").size(), static_cast<size_t>(kSteps));
}

// The environment is a function of its seed, so that what is begun anew is what was lost.
TEST_F(EnvironmentRun, IsTheSameWhoeverIsLost) {
  const DisturbedRun run = disturb(*folder_ / "disturbed", kSteps, kLosses, launch);
  ASSERT_EQ(run.result.exit_code, 0) << run.result.output;

  EXPECT_EQ(timeless_metrics(run.folder / "run"), timeless_metrics(undisturbed_run()));
  EXPECT_EQ(read_samples(run.folder / "run"), read_samples(undisturbed_run()));
}

}  // namespace
}  // namespace retort::test
