// dpo, grpo, rejection_sampling and on_policy_distill as whole runs: layouts give the same run, and
// every run repeats bit for bit.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

constexpr double kTolerance = 1e-5;

fs::path run(const TemporaryFolder& folder, const std::string& name, const OnPolicyRecipe& recipe) {
  const auto result = retort({"launch", write_on_policy(folder / name, recipe).string()});
  EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.output;
  return folder / name / "run";
}

OnPolicyRecipe dpo(const TemporaryFolder& folder) {
  return {
      .recipe = "dpo",
      .data = write_pairs(folder),
      .reference = "teacher",
      .rows = 4,
      .steps = 6,
      .block = {{"beta", "0.3"}, {"loss_type", "[sigmoid, sft]"}, {"loss_weights", "[1.0, 0.2]"}}};
}

TEST(Dpo, GivesTheSameRunInEveryLayout) {
  TemporaryFolder folder;
  OnPolicyRecipe one = dpo(folder), two = one, accumulated = one;
  two.dp = 2, two.rows = 2;
  accumulated.accumulation = 2, accumulated.rows = 2;
  const fs::path reference = run(folder, "one", one);
  ASSERT_EQ(metrics_rows(reference), 6u);
  for (const fs::path& other : {run(folder, "dp2", two), run(folder, "accumulated", accumulated)}) {
    for (const char* key :
         {"loss", "grad_norm", "nll_loss", "rewards/chosen", "rewards/rejected", "rewards/margins",
          "logps/chosen", "logps/rejected", "logits/chosen", "logits/rejected"})
      expect_same_column(other, reference, key, kTolerance);
    for (const char* key : {"num_pairs", "num_identical_pairs"})
      expect_same_column(other, reference, key, 0);
  }
  // 6 steps of 4 are two passes over 12 pairs, one of them identical
  double identical = 0, pairs = 0;
  for (const double count : column(reference, "num_identical_pairs"))
    identical += count;
  for (const double count : column(reference, "num_pairs"))
    pairs += count;
  EXPECT_EQ(pairs, 24);
  EXPECT_EQ(identical, 2);
}

OnPolicyRecipe grpo(const TemporaryFolder& folder, int64_t max_staleness = 0) {
  OnPolicyRecipe recipe{.data = write_prompts(folder),
                        .block = {{"max_staleness", std::to_string(max_staleness)}}};
  recipe.generation["save_samples"] = "true";
  return recipe;
}

TEST(Grpo, GivesTheSameRunInEveryLayout) {
  TemporaryFolder folder;
  OnPolicyRecipe one = grpo(folder);
  one.reference = "teacher";
  one.block["beta"] = "0.05";
  one.rows = 16;
  OnPolicyRecipe two = one, accumulated = one;
  two.dp = 2, two.rows = 8, two.generators = 2;
  // one rank, two replicas for it
  accumulated.accumulation = 4, accumulated.rows = 4, accumulated.generators = 2;
  const fs::path reference = run(folder, "one", one);
  ASSERT_EQ(read_samples(reference).size(), 56u);  // 10 prompts in steps of 4, 4, 2 and 4
  for (const fs::path& other : {run(folder, "dp2", two), run(folder, "accumulated", accumulated)}) {
    expect_same_samples(other, reference);
    for (const char* key : {"loss", "reward", "reward_std", "kl", "entropy", "grad_norm"})
      expect_same_column(other, reference, key, kTolerance);
    for (const char* key : {"num_tokens", "frac_reward_zero_std", "completions/mean_length",
                            "rewards/length", "rewards/regex"})
      expect_same_column(other, reference, key, 1e-12);
  }
}

TEST(Grpo, RepeatsBitForBitAtEveryStaleness) {
  TemporaryFolder folder;
  OnPolicyRecipe recipes[] = {grpo(folder), grpo(folder, 2)};
  std::vector<fs::path> first;
  for (OnPolicyRecipe& recipe : recipes) {
    recipe.steps = 6;
    const std::string name = "staleness" + recipe.block.at("max_staleness");
    first.push_back(run(folder, name, recipe));
    const fs::path again = run(folder, name + "-again", recipe);
    EXPECT_EQ(timeless_metrics(first.back()), timeless_metrics(again));
    EXPECT_EQ(read_samples(first.back()), read_samples(again));
    EXPECT_TRUE(read_file(first.back() / "final/model.safetensors") ==
                read_file(again / "final/model.safetensors"));
  }

  // Each run begins with the weights that there are, and lags as far as it may.
  EXPECT_EQ(column(first[0], "staleness"), (std::vector<double>{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(column(first[1], "staleness"), (std::vector<double>{0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(column(first[1], "weight_version"), (std::vector<double>{1, 1, 1, 2, 3, 4}));

  // The same prompts and noise; other weights only where the staleness says so.
  const auto fresh = read_samples(first[0]), stale = read_samples(first[1]);
  ASSERT_EQ(fresh.size(), stale.size());
  for (const auto& [key, row] : fresh) {
    EXPECT_EQ(stale.at(key).at("prompt_ids"), row.at("prompt_ids"));
    if (key.first == 1) {
      EXPECT_EQ(stale.at(key), row);
    }
  }

  // To rounding: where samples may be stale, what the trainer says of them is computed apart.
  EXPECT_NEAR(column(first[0], "loss").at(0), column(first[1], "loss").at(0), 1e-6);
  EXPECT_NE(column(first[0], "grad_norm"), column(first[1], "grad_norm"));
}

// A slow generator, so that pushes mostly meet samples in work; whichever do, every sample is there
// once and of one version.
TEST(Grpo, DrawsAgainWhatAPushEnds) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder, 2);
  recipe.steps = 6;
  recipe.generation["max_new_tokens"] = "50";
  recipe.generation["max_sequences"] = "1";
  recipe.generation["max_tokens_per_step"] = "16";
  recipe.extra = "weight_sync: {in_flight: abort}\n";
  const fs::path path = run(folder, "abort", recipe);
  const auto versions = column(path, "weight_version"), staleness = column(path, "staleness");
  ASSERT_EQ(versions.size(), 6u);
  const auto samples = read_samples(path);
  EXPECT_EQ(samples.size(), 48u);
  for (const auto& [key, row] : samples)
    EXPECT_EQ(row.at("weight_version").get<double>(),
              versions.at(static_cast<size_t>(key.first) - 1))
        << "step " << key.first;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(staleness[i], static_cast<double>(i + 1) - versions[i]);
    EXPECT_LE(staleness[i], 2);
    EXPECT_GE(staleness[i], 0);
  }
}

TEST(Grpo, TrainsSeveralTimesOnOneRound) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.steps = 6;
  recipe.block["num_iterations"] = "2";
  recipe.block["epsilon"] = "0.001";
  const fs::path path = run(folder, "two", recipe);
  const auto reward = column(path, "reward");
  ASSERT_EQ(reward.size(), 6u);
  EXPECT_EQ(read_samples(path).size(), 3u * 8);
  EXPECT_EQ(column(path, "weight_version"), (std::vector<double>{1, 1, 3, 3, 5, 5}));
  const auto region = column(path, "clip_ratio/region_mean");
  for (size_t i = 0; i < 6; i += 2) {
    EXPECT_EQ(reward[i], reward[i + 1]);
    EXPECT_EQ(region[i], 0) << "the first step on samples has the policy that drew them";
  }
  EXPECT_GT(region[1] + region[3] + region[5], 0) << "the second has moved away from it";
}

TEST(Grpo, SharesOutARolloutOverSeveralSteps) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = grpo(folder);
  recipe.steps = 6;
  recipe.block["num_mini_batches"] = "2";
  recipe.block["epsilon"] = "0.001";
  const fs::path path = run(folder, "two", recipe);
  // Rollouts of four prompts, the last two of the ten in one of their own.
  EXPECT_EQ(read_samples(path).size(), 10u * 4);
  EXPECT_EQ(column(path, "weight_version"), (std::vector<double>{1, 1, 3, 3, 5, 5}));
  EXPECT_EQ(column(path, "staleness"), (std::vector<double>{0, 1, 0, 1, 0, 1}));
  const auto region = column(path, "clip_ratio/region_mean");
  for (size_t i = 0; i < 6; i += 2)
    EXPECT_EQ(region[i], 0) << "the first step on samples has the policy that drew them";
  EXPECT_GT(region[1] + region[3] + region[5], 0) << "the second has moved away from it";
}

// Each option alone changes the training on the same first samples.
TEST(Grpo, OptionsOfRewardsAndSamplesTakeEffect) {
  TemporaryFolder folder;
  OnPolicyRecipe plain = grpo(folder);
  plain.rewards = "[{type: regex, pattern: 'w[1-3]'}]";
  plain.generation["stop"] = "[w5]";
  plain.steps = 2;
  const auto norms = [&](const std::string& name, const OnPolicyRecipe& recipe,
                         const std::map<std::string, std::string>& options) {
    OnPolicyRecipe changed = recipe;
    changed.block.insert(options.begin(), options.end());
    return column(run(folder, name, changed), "grad_norm");
  };
  const auto expected = norms("plain", plain, {});
  EXPECT_NE(norms("masked", plain, {{"mask_truncated_completions", "true"}}), expected);
  EXPECT_NE(norms("penalty", plain, {{"overlong_penalty_tokens", "5"}}), expected);
  EXPECT_NE(norms("entropy", plain, {{"entropy_coef", "0.1"}}), expected);

  // A reward that few completions get, so that those of many prompts score alike.
  OnPolicyRecipe rare = plain;
  rare.rewards = "[{type: regex, pattern: 'w7'}]";
  EXPECT_NE(norms("anew", rare, {{"max_resamples", "3"}}), norms("rare", rare, {}));
}

TEST(RejectionSampling, KeepsTheSameRowsInEveryLayout) {
  TemporaryFolder folder;
  OnPolicyRecipe one{.recipe = "rejection_sampling",
                     .data = write_prompts(folder),
                     .rows = 4,
                     .steps = 4,
                     .block = {{"rounds", "2"}, {"prompts_per_round", "7"}, {"top_n", "2"}},
                     .data_extra = "  packing: false\n"};
  OnPolicyRecipe two = one;
  two.dp = 2, two.rows = 2, two.generators = 2;
  const fs::path a = run(folder, "one", one), b = run(folder, "dp2", two),
                 again = run(folder, "again", one);
  for (const char* round : {"kept/round-0.jsonl", "kept/round-1.jsonl"}) {
    EXPECT_EQ(read_lines(a / round).size(), 14u);
    EXPECT_EQ(read_lines(b / round), read_lines(a / round)) << round;
  }
  for (const char* key : {"loss", "grad_norm", "reward", "reward_kept"})
    expect_same_column(b, a, key, kTolerance);
  // What all ranks know of a round is said once.
  const auto says_round = [&](const std::string& log) {
    return read_file(b / "logs" / log).find("round 0: ") != std::string::npos;
  };
  EXPECT_TRUE(says_round("student-0.log"));
  EXPECT_FALSE(says_round("student-1.log"));
  EXPECT_EQ(timeless_metrics(again), timeless_metrics(a));
  EXPECT_GT(column(a, "reward_kept").at(0), column(a, "reward").at(0));
}

// There are no targets, and no step, before samples are drawn; a row needs no answer.
TEST(Audit, ShowsPromptsWhereCompletionsAreDrawn) {
  TemporaryFolder folder;
  OnPolicyRecipe grpo{.data = write_prompts(folder)};
  std::ofstream(grpo.data, std::ios::app) << R"({"prompt": "w1 w2 w3"})"
                                          << "\n";
  OnPolicyRecipe rejection = grpo;
  rejection.recipe = "rejection_sampling";
  rejection.block = {{"rounds", "2"}};
  for (const OnPolicyRecipe& recipe : {grpo, rejection}) {
    const fs::path path = write_on_policy(folder / recipe.recipe, recipe);
    const CommandResult result = retort({"audit", path.string(), "--samples", "1"});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    for (const char* part :
         {"prompts.jsonl:1: prompt 1 tokens\nw7\nreference: w14 w19 w24\n",
          "--- all: 11 prompts, 10 with a reference; mean tokens 3.1, longest 6; skipped 0",
          "--- 4 completions of each are drawn, of at most 10 tokens"})
      EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
    EXPECT_EQ(result.output.find("prompts.jsonl:2"), std::string::npos) << result.output;
    EXPECT_EQ(result.output.find("first step"), std::string::npos) << result.output;
  }
}

TEST(OnPolicyDistill, RepeatsBitForBitAndTakesSampledTokens) {
  TemporaryFolder folder;
  OnPolicyRecipe one{.recipe = "on_policy_distill",
                     .data = write_prompts(folder),
                     .teacher = "teacher",
                     .rows = 4,
                     .block = {{"teachers", "[{role: teacher}]"}, {"loss_type", "reverse_kl"}},
                     .generation = {{"max_new_tokens", "10"}},
                     .data_extra = "  packing: false\n"};
  const fs::path a = run(folder, "one", one), again = run(folder, "again", one);
  EXPECT_EQ(timeless_metrics(a), timeless_metrics(again));
  OnPolicyRecipe sampled = one;
  sampled.block["payload"] = "target_logps";
  sampled.block["use_policy_gradient"] = "true";
  const fs::path b = run(folder, "sampled", sampled);
  for (const fs::path& path : {a, b}) {
    const auto loss = column(path, "kd_loss");
    ASSERT_EQ(loss.size(), 4u);
    EXPECT_GT(loss[0], 0);
  }
  EXPECT_EQ(column(a, "num_tokens").at(0), column(b, "num_tokens").at(0))
      << "the first samples are the same";
}

}  // namespace
}  // namespace retort::test
