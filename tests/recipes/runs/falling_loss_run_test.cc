// Every recipe learns: what it minimises or is rewarded for moves over a run of 24 steps. The
// numbers of a run repeat bit for bit, so nothing here is left to chance.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr int64_t kSteps = 24;
constexpr size_t kWindow = 6;  // steps whose mean is compared

double mean(const std::vector<double>& values, size_t begin) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
  return std::accumulate(first, first + kWindow, 0.0) / kWindow;
}

// The means of the first and of the last steps.
struct Ends {
  double first = 0, last = 0;
};
Ends ends_of(const fs::path& run, const std::string& key) {
  const std::vector<double> values = column(run, key);
  if (values.size() != kSteps) {
    ADD_FAILURE() << values.size() << " values of " << key;
    return {};
  }
  return {mean(values, 0), mean(values, kSteps - kWindow)};
}

class FallingLoss : public testing::Test {
 protected:
  fs::path launch(const fs::path& recipe) {
    std::vector<std::string> arguments{"launch", recipe.string(), "train.learning_rate=5.0e-3"};
    arguments.insert(arguments.end(), settings_.begin(), settings_.end());
    const CommandResult result = retort(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return recipe.parent_path() / "run";
  }
  // Of a recipe with other roles than teachers.
  fs::path launch(OnPolicyRecipe recipe) {
    recipe.steps = kSteps;
    return launch(write_on_policy(folder_.path(), recipe));
  }
  // Trains an adapter in the place of the model (lora_run_test has the other recipes).
  void adapt() {
    settings_ = {"roles.student.lora={r: 8, lora_alpha: 32}", "train.learning_rate=2.0e-2"};
  }
  void expect_below(const fs::path& run, const std::string& key, double share) {
    ASSERT_FALSE(HasFailure());
    const Ends ends = ends_of(run, key);
    EXPECT_LT(ends.last, share * ends.first) << key << " from " << ends.first;
  }
  void expect_above(const fs::path& run, const std::string& key, double difference) {
    ASSERT_FALSE(HasFailure());
    const Ends ends = ends_of(run, key);
    EXPECT_GT(ends.last, ends.first + difference)
        << key << " from " << ends.first << " to " << ends.last;
  }

  TemporaryFolder folder_;
  std::vector<std::string> settings_;
};

TEST_F(FallingLoss, Sft) {
  expect_below(launch(write_recipe(folder_.path(), {.steps = kSteps})), "loss", 0.8);
}

TEST_F(FallingLoss, Distill) {
  const fs::path run =
      launch(write_recipe(folder_.path(), {.teacher = "teacher", .steps = kSteps}));
  expect_below(run, "loss", 0.6);
  expect_below(run, "kd_loss", 0.6);
}

TEST_F(FallingLoss, Dpo) {
  const fs::path run =
      launch({.recipe = "dpo", .data = write_pairs(folder_), .reference = "qwen3", .rows = 4});
  expect_below(run, "loss", 0.8);
  expect_above(run, "rewards/margins", 0.5);
}

TEST_F(FallingLoss, Kto) {
  const fs::path run = launch(
      {.recipe = "kto", .data = goldens() / "labels.jsonl", .reference = "qwen3", .rows = 4});
  expect_below(run, "loss", 0.9);
}

TEST_F(FallingLoss, OnPolicyDistill) {
  const fs::path run = launch({.recipe = "on_policy_distill",
                               .data = write_prompts(folder_),
                               .teacher = "teacher",
                               .block = {{"loss_type", "reverse_kl"}},
                               .generation = {{"max_new_tokens", "10"}}});
  expect_below(run, "kd_loss", 0.75);
}

TEST_F(FallingLoss, Grpo) {
  const fs::path run = launch({.recipe = "grpo",
                               .data = write_prompts(folder_),
                               .rewards = "[{type: regex, pattern: 'w1[0-9]'}]"});
  expect_above(run, "reward", 0.2);
}

TEST_F(FallingLoss, RejectionSampling) {
  const fs::path run = launch({.recipe = "rejection_sampling",
                               .data = write_prompts(folder_),
                               .block = {{"rounds", "3"}},
                               .rewards = "[{type: regex, pattern: 'w1[0-9]'}]"});
  expect_below(run, "loss", 0.9);
}

TEST_F(FallingLoss, DistillAnAdapter) {
  adapt();
  const fs::path run =
      launch(write_recipe(folder_ / "one", {.teacher = "teacher", .steps = kSteps}));
  expect_below(run, "kd_loss", 0.75);
  settings_.push_back("roles.student.world.tp=2");
  const fs::path split =
      launch(write_recipe(folder_ / "two", {.teacher = "teacher", .steps = kSteps}));
  // Later steps have what Adam makes of the roundings of the first.
  for (const char* key : {"loss", "kd_loss", "grad_norm"}) {
    const std::vector<double> got = column(split, key), want = column(run, key);
    for (size_t i = 0; i < kWindow; ++i)
      EXPECT_NEAR(got.at(i), want.at(i), 1e-4) << key << " of row " << i;
  }
}

TEST_F(FallingLoss, OnPolicyDistillAnAdapter) {
  adapt();
  const fs::path run = launch({.recipe = "on_policy_distill",
                               .data = write_prompts(folder_),
                               .teacher = "teacher",
                               .block = {{"loss_type", "reverse_kl"}},
                               .generation = {{"max_new_tokens", "10"}}});
  expect_below(run, "kd_loss", 0.85);
}

TEST_F(FallingLoss, RejectionSamplingOfAnAdapter) {
  adapt();
  const fs::path run = launch({.recipe = "rejection_sampling",
                               .data = write_prompts(folder_),
                               .block = {{"rounds", "3"}},
                               .rewards = "[{type: regex, pattern: 'w1[0-9]'}]"});
  expect_below(run, "loss", 0.95);
}

}  // namespace
}  // namespace retort::test
