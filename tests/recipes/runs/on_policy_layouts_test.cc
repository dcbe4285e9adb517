// Recipes with a generator, the student and the generator split over several processes: the run of
// one process each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr double kTolerance = 1e-5;

struct Split {
  std::string name, student, generator;
  int64_t dp = 1, generators = 1;
};

fs::path run(const TemporaryFolder& folder, const std::string& name, const OnPolicyRecipe& recipe) {
  const auto result = retort({"launch", write_on_policy(folder / name, recipe).string()},
                             std::chrono::seconds(120));
  EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.output;
  return folder / name / "run";
}

fs::path run(const TemporaryFolder& folder, OnPolicyRecipe recipe, const Split& split) {
  recipe.student_world = split.student;
  recipe.generator_world = split.generator;
  recipe.dp = split.dp;
  recipe.rows /= split.dp;
  recipe.generators = split.generators;
  return run(folder, split.name, recipe);
}

void expect_same(const fs::path& other, const fs::path& reference,
                 std::initializer_list<const char*> keys) {
  SCOPED_TRACE(other.parent_path().filename());
  for (const char* key : keys)
    expect_same_column(other, reference, key, kTolerance);
}

TEST(OnPolicyLayouts, Grpo) {
  TemporaryFolder folder;
  OnPolicyRecipe one{.data = write_prompts(folder),
                     .reference = "teacher",
                     .rows = 16,
                     .steps = 5,
                     .block = {{"beta", "0.05"}}};
  one.generation["save_samples"] = "true";
  const fs::path reference = run(folder, "one", one);
  ASSERT_EQ(metrics_rows(reference), 5u);
  for (const Split& split :
       std::vector<Split>{{"tp", ", tp: 2, sequence_parallel: true", ", tp: 2"},
                          {"pp", ", pp: 2", ", tp: 2"},
                          {"tp-pp", ", tp: 2, pp: 2", ""},
                          {"tp-dp", ", tp: 2", ", tp: 2", 2, 2},
                          {"zero", ", distributed_optimizer: true", ", tp: 2", 2}}) {
    const fs::path other = run(folder, one, split);
    expect_same_samples(other, reference);
    expect_same(other, reference,
                {"loss", "grad_norm", "reward", "reward_std", "kl", "entropy", "num_tokens",
                 "completions/mean_length", "rewards/length", "weight_version"});
  }
}

// Rounds in flight, several passes over each, and samples that are given up and drawn again: the
// ranks stay together.
TEST(OnPolicyLayouts, GrpoThatRunsAhead) {
  TemporaryFolder folder;
  OnPolicyRecipe one{
      .data = write_prompts(folder), .rows = 16, .steps = 6, .block = {{"max_staleness", "2"}}};
  one.generation["save_samples"] = "true";
  const fs::path reference = run(folder, "one", one);
  const fs::path other = run(folder, one, {"tp", ", tp: 2", ", tp: 2"});
  expect_same_samples(other, reference);
  expect_same(other, reference, {"loss", "grad_norm", "reward", "staleness", "weight_version"});
  OnPolicyRecipe twice = one;
  twice.block = {{"num_iterations", "2"}};
  twice.data_extra = "  eval: [{path: " + twice.data.string() + "}]\n";
  const fs::path twice_one = run(folder, "twice", twice);
  const fs::path twice_pp = run(folder, twice, {"twice-pp", ", tp: 2, pp: 2", ", tp: 2"});
  for (const char* key : {"clip_ratio/region_mean", "loss", "grad_norm", "eval_reward",
                          "eval_completions/mean_length"}) {
    const auto got = column(twice_pp, key), expected = column(twice_one, key);
    ASSERT_EQ(got.size(), expected.size()) << key;
    ASSERT_FALSE(got.empty()) << key;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], kTolerance * std::max(1.0, std::abs(expected[i])))
          << key << " " << i;
  }
  OnPolicyRecipe aborting = one;
  aborting.generation["max_new_tokens"] = "25";
  aborting.generation["max_sequences"] = "2";
  aborting.generation["max_tokens_per_step"] = "16";
  aborting.extra = "weight_sync: {in_flight: abort}\n";
  const fs::path aborted = run(folder, aborting, {"abort", ", tp: 2", ", tp: 2"});
  const auto versions = column(aborted, "weight_version");
  ASSERT_EQ(versions.size(), 6u);
  for (const auto& [key, row] : read_samples(aborted))
    EXPECT_EQ(row.at("weight_version").get<double>(),
              versions.at(static_cast<size_t>(key.first) - 1))
        << "step " << key.first;
}

// Prompts drawn anew, rewards with a KL and a penalty, two steps a rollout.
TEST(OnPolicyLayouts, GrpoAsItIsUsed) {
  TemporaryFolder folder;
  OnPolicyRecipe one{.data = write_prompts(folder),
                     .reference = "teacher",
                     .rows = 16,
                     .steps = 6,
                     .block = {{"beta", "0.05"},
                               {"kl_in_reward", "true"},
                               {"num_mini_batches", "2"},
                               {"max_resamples", "2"},
                               {"overlong_penalty_tokens", "4"}},
                     .rewards = "[{type: regex, pattern: 'w[1-3]'}]"};
  one.generation["save_samples"] = "true";
  one.generation["stop"] = "[w5]";
  const fs::path reference = run(folder, "one", one);
  const auto resampled = column(reference, "num_resampled_prompts");
  EXPECT_GT(*std::max_element(resampled.begin(), resampled.end()), 0);
  for (const Split& split :
       std::vector<Split>{{"tp-pp", ", tp: 2, pp: 2", ", tp: 2"}, {"dp", "", "", 2, 2}}) {
    const fs::path other = run(folder, one, split);
    expect_same_samples(other, reference);
    expect_same(other, reference,
                {"loss", "grad_norm", "reward", "reward_std", "kl", "entropy", "num_tokens",
                 "overlong_penalty", "num_resampled_prompts", "clip_ratio/region_mean"});
  }
}

// The student is asked before a step, for its old policy and the entropies of all ranks; each
// reward is compared by itself. The first tokens of a group have one entropy, as they have one
// prompt. A quantile that falls among them would be a matter of last bits, which layouts and
// processors have of their own: with 0.28 it falls between two entropies in every step.
TEST(OnPolicyLayouts, GrpoThatAsksTheStudentFirst) {
  TemporaryFolder folder;
  OnPolicyRecipe one{.data = write_prompts(folder),
                     .reference = "teacher",
                     .rows = 16,
                     .steps = 4,
                     .block = {{"beta", "0.05"},
                               {"num_mini_batches", "2"},
                               {"sampling_correction", "token_truncate"},
                               {"importance_sampling_floor", "0.5"},
                               {"top_entropy_quantile", "0.28"},
                               {"entropy_coef", "0.01"},
                               {"multi_objective_aggregation", "normalize_then_sum"}},
                     .rewards = "[{type: length, min: 5}, {type: regex, pattern: 'w[1-3]'}]"};
  one.generation["save_samples"] = "true";
  one.generation["stop"] = "[w5]";
  const fs::path reference = run(folder, "one", one);
  for (const double share : column(reference, "frac_high_entropy")) {
    EXPECT_GT(share, 0.2);
    EXPECT_LT(share, 0.5);
  }
  for (const Split& split :
       std::vector<Split>{{"tp-pp", ", tp: 2, pp: 2", ", tp: 2"}, {"dp", "", "", 2, 2}}) {
    const fs::path other = run(folder, one, split);
    expect_same_samples(other, reference);
    expect_same(other, reference,
                {"loss", "grad_norm", "reward", "kl", "entropy", "frac_high_entropy",
                 "sampling_ratio/mean", "num_tokens"});
  }
}

TEST(OnPolicyLayouts, RejectionSampling) {
  TemporaryFolder folder;
  const OnPolicyRecipe one{.recipe = "rejection_sampling",
                           .data = write_prompts(folder),
                           .rows = 4,
                           .steps = 5,
                           .block = {{"rounds", "5"}, {"prompts_per_round", "7"}, {"top_n", "2"}},
                           .data_extra = "  packing: false\n"};
  const fs::path reference = run(folder, "one", one);
  for (const Split& split : std::vector<Split>{{"tp", ", tp: 2", ", tp: 2"},
                                               {"pp-dp", ", pp: 2", ", tp: 2", 2, 2},
                                               {"tp-pp", ", tp: 2, pp: 2", ""}}) {
    const fs::path other = run(folder, one, split);
    for (int round = 0; round < 5; ++round) {
      const std::string file = "kept/round-" + std::to_string(round) + ".jsonl";
      EXPECT_EQ(read_lines(other / file), read_lines(reference / file))
          << split.name << " " << file;
    }
    expect_same(other, reference, {"loss", "grad_norm", "reward", "reward_kept", "num_kept"});
  }
}

TEST(OnPolicyLayouts, OnPolicyDistill) {
  TemporaryFolder folder;
  OnPolicyRecipe one{.recipe = "on_policy_distill",
                     .data = write_prompts(folder),
                     .teacher = "teacher",
                     .rows = 4,
                     .steps = 5,
                     .block = {{"teachers", "[{role: teacher}]"}, {"loss_type", "reverse_kl"}},
                     .generation = {{"max_new_tokens", "10"}, {"save_samples", "true"}},
                     .data_extra = "  packing: false\n"};
  OnPolicyRecipe sampled = one;
  sampled.block["payload"] = "target_logps";
  sampled.block["use_policy_gradient"] = "true";
  for (const auto& [name, recipe] : {std::pair{"full", one}, std::pair{"sampled", sampled}}) {
    const fs::path reference = run(folder, name, recipe);
    for (const Split& split :
         std::vector<Split>{{"tp", ", tp: 2", ", tp: 2"}, {"pp-dp", ", pp: 2", "", 2}}) {
      Split named = split;
      named.name = std::string(name) + "-" + split.name;
      const fs::path other = run(folder, recipe, named);
      expect_same_samples(other, reference);
      expect_same(other, reference, {"loss", "kd_loss", "grad_norm", "num_tokens"});
    }
  }
}

}  // namespace
}  // namespace retort::test
