// GRPO as it is used: rollouts in several steps, prompts drawn anew, other clips, what a reward or
// a loss leaves out. Losses and gradients against their formulas.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "recipes/grpo/mini_batch_split.h"
#include "recipes/grpo/round_rewards.h"
#include "tests/recipes/objectives/fake_frozen_role.h"
#include "tests/recipes/objectives/grpo_loss_fixture.h"

namespace retort::recipes {
namespace {

using losses::PolicyLossType;
using test::Expected, test::Known;

class GrpoOptionsTest : public GrpoLossTest {
 protected:
  void expect_formula(const Computed& computed, const Expected& expected) {
    EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(), 1e-5);
    expect_same_gradient(computed.loss, expected.loss);
  }
};

// ---- clips ----

TEST_F(GrpoOptionsTest, CispoWeighsLogProbabilitiesByACappedRatio) {
  GrpoOptions options = kStale;
  options.loss_type = PolicyLossType::kCispo;
  options.epsilon_high = 1.2;
  const Run run = start(setting(options));
  const Computed computed = compute(*run.objective, 1, student_);
  const Expected expected = formula(student_, first_round(), options);
  EXPECT_GT(expected.clipped_high, 0) << "or the test shows nothing";
  EXPECT_NEAR(metric(computed.row, "clip_ratio/high_mean"), expected.clipped_high / 22, 1e-12);
  expect_formula(computed, expected);

  // Another cap is another loss.
  options.epsilon_high = 1.5;
  const double other = formula(student_, first_round(), options).loss.item<double>();
  EXPECT_GT(std::abs(other - computed.loss.item<double>()), 1e-3);
}

TEST_F(GrpoOptionsTest, DeltaBoundsTheRatioOfBadSamples) {
  GrpoOptions options = kStale;
  options.delta = 1.5;
  const Run run = start(setting(options));
  const Computed computed = compute(*run.objective, 1, student_);
  const Expected expected = formula(student_, first_round(), options);
  EXPECT_GT(expected.clipped_delta, 0) << "or the test shows nothing";
  EXPECT_NEAR(metric(computed.row, "clip_ratio/delta_mean"), expected.clipped_delta / 22, 1e-12);
  expect_formula(computed, expected);

  const double without = formula(student_, first_round(), kStale).loss.item<double>();
  EXPECT_GT(std::abs(without - computed.loss.item<double>()), 1e-3);
}

TEST_F(GrpoOptionsTest, BadSamplesThatAreNowTooUnlikelyAreDropped) {
  GrpoOptions options = kStale;
  options.off_policy_mask_threshold = 0.1;
  const Run run = start(setting(options));
  const Computed computed = compute(*run.objective, 1, student_);
  const Expected expected = formula(student_, first_round(), options);
  EXPECT_GT(expected.off_policy, 0) << "or the test shows nothing";
  EXPECT_NEAR(metric(computed.row, "frac_off_policy_masked"), expected.off_policy / 8, 1e-12);
  expect_formula(computed, expected);

  const double without = formula(student_, first_round(), kStale).loss.item<double>();
  EXPECT_GT(std::abs(without - computed.loss.item<double>()), 1e-3);
}

// ---- the entropy bonus ----

TEST_F(GrpoOptionsTest, AnEntropyBonusIsTheMeanOverTokensWhateverTheLossIsDividedBy) {
  for (const PolicyLossType type :
       {PolicyLossType::kGrpo, PolicyLossType::kDrGrpo, PolicyLossType::kDapo}) {
    SCOPED_TRACE(enum_name(type));
    GrpoOptions options = kStale;
    options.loss_type = type;
    options.entropy_coef = 0.5;
    const Run run = start(setting(options));
    const Computed computed = compute(*run.objective, 1, student_);
    expect_formula(computed, formula(student_, first_round(), options));
    options.entropy_coef = 0;
    const Run without = start(setting(options));
    EXPECT_GT(std::abs(compute(*without.objective, 1, student_).loss.item<double>() -
                       computed.loss.item<double>()),
              1);
  }
}

// ---- tokens by their entropy ----

TEST_F(GrpoOptionsTest, OnlyTokensOfHighEntropyHaveAPolicyGradient) {
  // A share that ends in the widest gap: first tokens of a prompt's samples have one entropy.
  const std::vector<double> sorted = test::sorted_entropies(student_, first_round(), kTemperature);
  ASSERT_EQ(sorted.size(), 22u);
  size_t low = 6;  // the last one outside
  for (size_t i = low; i <= 15; ++i)
    if (sorted[i + 1] - sorted[i] > sorted[low + 1] - sorted[low]) low = i;
  const auto high = static_cast<double>(21 - low);

  for (const double bonus : {0.0, 0.5}) {
    GrpoOptions options = kStale;
    options.top_entropy_quantile = 1 - (static_cast<double>(low) + 0.5) / 21;
    options.entropy_coef = bonus;
    const Run run = start(setting(options));
    const Computed computed = compute(*run.objective, 1, student_);
    const Expected expected = formula(student_, first_round(), options);
    EXPECT_EQ(expected.high_entropy, high);
    EXPECT_NEAR(metric(computed.row, "frac_high_entropy"), high / 22, 1e-12);
    EXPECT_NEAR(metric(computed.row, "entropy"), expected.entropy, 1e-5) << "of all tokens";
    expect_formula(computed, expected);

    // Without it, it is another loss.
    options.top_entropy_quantile = 1;
    const double other = formula(student_, first_round(), options).loss.item<double>();
    EXPECT_GT(std::abs(other - computed.loss.item<double>()), 1e-3);
  }
}

// ---- samples that were cut off ----

TEST_F(GrpoOptionsTest, TruncatedCompletionsHaveNoLoss) {
  std::vector<Known> samples = first_round();
  int64_t masked = 0;
  for (Known& sample : samples) {
    sample.masked = sample.completion.finish_reason == models::FinishReason::kLength;
    masked += sample.masked;
  }
  EXPECT_EQ(masked, 1);

  GrpoOptions options = kStale;
  options.mask_truncated_completions = true;
  for (const PolicyLossType type : {PolicyLossType::kGrpo, PolicyLossType::kBnpo,
                                    PolicyLossType::kDrGrpo, PolicyLossType::kDapo}) {
    SCOPED_TRACE(enum_name(type));
    options.loss_type = type;
    const Run run = start(setting(options));
    const Computed computed = compute(*run.objective, 1, student_);
    expect_formula(computed, formula(student_, samples, options));
    EXPECT_EQ(metric(computed.row, "reward"), 5.0 / 8) << "of all";
    if (type != PolicyLossType::kDapo) continue;

    // At the ratio 1 the value is - sum(A n) / sum(n) over the completions that ended; with the
    // tokens of those that were cut off in the divisor it is another.
    const Run fresh = start(setting({.mask_truncated_completions = true}));
    double sum = 0;
    double kept = 0;
    double all = 0;
    for (const Known& sample : samples) {
      const auto length = static_cast<double>(sample.length());
      all += length;
      if (sample.masked) continue;
      kept += length;
      sum -= sample.advantage * length;
    }
    const double loss = compute(*fresh.objective, 1, student_).loss.item<double>();
    EXPECT_NEAR(loss, sum / kept, 1e-5);
    EXPECT_GT(std::abs(loss - sum / all), 1e-3) << "or the test shows nothing";
  }
}

TEST_F(GrpoOptionsTest, LongCompletionsLoseOfTheirReward) {
  // From the third token on, down to -1 at the sixth.
  EXPECT_EQ(overlong_penalty(2, 6, 4), 0);
  EXPECT_EQ(overlong_penalty(3, 6, 4), -0.25);
  EXPECT_EQ(overlong_penalty(6, 6, 4), -1);
  EXPECT_EQ(overlong_penalty(7, 6, 4), -1);
  EXPECT_EQ(overlong_penalty(6, 6, 0), 0);

  GrpoOptions options = kStale;
  options.overlong_penalty_tokens = 4;
  std::vector<Known> samples = first_round();
  double penalties = 0;
  for (Known& sample : samples) {
    const double penalty = -std::max(0.0, static_cast<double>(sample.length()) - 2) / 4;
    sample.reward += penalty;
    penalties += penalty;
  }
  compare_groups(samples, kGenerations);
  const Run run = start(setting(options));
  const Computed computed = compute(*run.objective, 1, student_);
  expect_formula(computed, formula(student_, samples, options));
  EXPECT_NEAR(metric(computed.row, "overlong_penalty"), penalties / 8, 1e-12);
  EXPECT_NEAR(metric(computed.row, "reward"), 5.0 / 8 + penalties / 8, 1e-12);
  EXPECT_EQ(metric(computed.row, "rewards/long"), 0.5) << "as the reward said";
}

// ---- the KL to the reference as a part of the reward ----

TEST_F(GrpoOptionsTest, TheKlOfACompletionIsTakenFromItsReward) {
  GrpoOptions options = kStale;
  options.beta = 0.2;
  options.kl_in_reward = true;
  const models::Decoder reference = model(9);
  Setting with_reference = setting(options);
  with_reference.reference = [] {
    return std::make_unique<test::FakeFrozenRole>(
        model(9), roles::PayloadSpec{.kind = roles::PayloadKind::kTargetLogProbs,
                                     .temperature = kTemperature});
  };

  std::vector<Known> samples = first_round();
  double kl = 0;
  for (Known& sample : samples) {
    const c10::NoGradGuard no_grad;
    const at::Tensor theirs = of_tokens(distributions(reference, sample, kTemperature), sample);
    const double difference = (sample.old - theirs).sum().item<double>();
    sample.reward -= 0.2 * difference;
    kl += difference;
  }
  compare_groups(samples, kGenerations);
  const Run run = start(with_reference);
  const Computed computed = compute(*run.objective, 1, student_);
  EXPECT_GT(std::abs(kl), 0.1) << "or the test shows nothing";
  EXPECT_NEAR(metric(computed.row, "kl"), kl / 22, 1e-5);
  // Advantages of close rewards are a quotient of small differences.
  EXPECT_NEAR(computed.loss.item<double>(), formula(student_, samples, kStale).loss.item<double>(),
              1e-4);
  expect_same_gradient(computed.loss, formula(student_, samples, kStale).loss);
}

// ---- several rewards ----

TEST_F(GrpoOptionsTest, RewardsAreComparedEachByItself) {
  GrpoOptions options = kStale;
  options.multi_objective_aggregation = MultiObjectiveAggregation::kNormalizeThenSum;
  std::vector<Known> samples = first_round();
  const auto compared = [&](auto score) {
    std::vector<Known> scored = samples;
    for (Known& sample : scored)
      sample.reward = score(sample.length());
    compare_groups(scored, kGenerations);
    return scored;
  };
  const std::vector<Known> longer = compared([](int64_t length) { return length >= 3; });
  const std::vector<Known> single = compared([](int64_t length) { return length <= 1; });

  std::vector<double> sums;
  for (size_t i = 0; i < samples.size(); ++i)
    sums.push_back(longer[i].advantage + 0.5 * single[i].advantage);
  const at::Tensor all = at::tensor(sums, at::kDouble);
  const at::Tensor advantages = (all - all.mean()) / (all.std() + 1e-4);
  for (size_t i = 0; i < samples.size(); ++i)
    samples[i].advantage = advantages[static_cast<int64_t>(i)].item<double>();

  const Run run = start(setting(options));
  const Computed computed = compute(*run.objective, 1, student_);
  expect_formula(computed, formula(student_, samples, options));
  EXPECT_EQ(metric(computed.row, "reward"), 5.0 / 8) << "their sum";
  const double summed = formula(student_, first_round(), options).loss.item<double>();
  EXPECT_GT(std::abs(summed - computed.loss.item<double>()), 1e-3);
}

// A prompt is drawn anew where no reward tells its samples apart, not where their sum does not.
TEST(GrpoPlacesWithoutSignal, LooksAtEachReward) {
  const at::Tensor objectives =
      at::tensor({0.0, 1.0, 1.0, 0.0, 2.0, 3.0, 2.0, 3.0}, at::kDouble).reshape({4, 2});
  EXPECT_EQ(places_without_signal(objectives, 2), (std::vector<int64_t>{1}));
  EXPECT_EQ(places_without_signal(objectives.sum(1), 2), (std::vector<int64_t>{0, 1}));
}

// ---- several steps a rollout ----

TEST_F(GrpoOptionsTest, MiniBatchesShareOutARollout) {
  GrpoOptions options{.epsilon_high = 0.3, .num_mini_batches = 2, .num_iterations = 2};
  const Run run = start(setting(options));
  const models::Decoder students[] = {trainable(7), trainable(8), trainable(9), trainable(10)};
  for (int64_t step = 1; step <= 4; ++step) {
    SCOPED_TRACE(step);
    const std::vector<Known> samples = samples_of({(step - 1) % 2});
    const models::Decoder& student = students[step - 1];
    const Computed computed = compute(*run.objective, step, student);
    const Expected expected = formula(student, samples, options);
    EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(),
                1e-4 * (1 + std::abs(expected.loss.item<double>())));
    EXPECT_EQ(metric(computed.row, "staleness"), static_cast<double>(step - 1));
    EXPECT_EQ(metric(computed.row, "reward"), 5.0 / 8) << "of the whole rollout";
  }
  EXPECT_EQ(run.samples->asked.size(), 1u) << "one round";
  run.objective->next_step(5);
  EXPECT_EQ(run.samples->asked.size(), 2u);
}

// With a correction the ratio is to the student before the first step on the rollout, and clipped;
// the weight is that of this student to the generator, whatever the steps since then have done.
TEST_F(GrpoOptionsTest, ACorrectedRolloutHasTheOldPolicyOfItsFirstStep) {
  const GrpoOptions options{.epsilon = 0.05,
                            .num_mini_batches = 2,
                            .num_iterations = 2,
                            .sampling_correction = CorrectionChoice::kTokenMask,
                            .importance_sampling_cap = 1.5,
                            .importance_sampling_floor = 0.7};
  const Run run = start(setting(options));
  const models::Decoder students[] = {trainable(7), trainable(8), trainable(9), trainable(10)};
  for (int64_t step = 1; step <= 4; ++step) {
    SCOPED_TRACE(step);
    std::vector<Known> samples = samples_of({(step - 1) % 2});
    double weights = 0;
    for (Known& sample : samples) {
      const at::Tensor drawn = sample.old;
      sample.old = of_tokens(distributions(student_, sample, kTemperature), sample).detach();
      const at::Tensor weight = (sample.old - drawn).exp();
      sample.weight = weight * (weight <= 1.5) * (weight >= 0.7);
      weights += sample.weight.sum().item<double>();
    }
    const models::Decoder& student = students[step - 1];
    const Computed computed = compute(*run.objective, step, student);
    const Expected expected = formula(student, samples, options);
    EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(),
                1e-4 * (1 + std::abs(expected.loss.item<double>())));
    EXPECT_NEAR(metric(computed.row, "sampling_ratio/mean"), weights / expected.tokens, 1e-5);
    EXPECT_EQ(metric(computed.row, "clip_ratio/region_mean") > 0, step > 1);
  }
}

// The same without a correction: the choice of TRL, whose generator reports nothing that is used.
TEST_F(GrpoOptionsTest, TheOldPolicyMayBeTheTrainers) {
  const GrpoOptions options{
      .epsilon = 0.05, .num_mini_batches = 2, .old_logps = OldPolicy::kTrainer};
  const Run run = start(setting(options));
  const models::Decoder later = trainable(8);
  compute(*run.objective, 1, student_);
  const Computed computed = compute(*run.objective, 2, later);
  std::vector<Known> samples = samples_of({1});
  const double to_generator = formula(later, samples, options).loss.item<double>();
  for (Known& sample : samples)
    sample.old = of_tokens(distributions(student_, sample, kTemperature), sample).detach();
  const double expected = formula(later, samples, options).loss.item<double>();
  EXPECT_NEAR(computed.loss.item<double>(), expected, 1e-4 * (1 + std::abs(expected)));
  EXPECT_GT(std::abs(to_generator - expected), 1e-3) << "or the test shows nothing";
}

TEST(GrpoOldPolicy, IsTheTrainersWhereACorrectionMeetsSeveralSteps) {
  const auto corrected = CorrectionChoice::kSequenceMask;
  EXPECT_EQ(GrpoOptions{}.old_policy(), OldPolicy::kTrainer);
  EXPECT_TRUE(GrpoOptions{}.ratio_is_one());
  EXPECT_EQ(GrpoOptions{.num_mini_batches = 2}.old_policy(), OldPolicy::kGenerator);
  EXPECT_EQ(GrpoOptions{.max_staleness = 1}.old_policy(), OldPolicy::kGenerator);
  EXPECT_EQ((GrpoOptions{.num_mini_batches = 2, .sampling_correction = corrected}).old_policy(),
            OldPolicy::kTrainer);
  EXPECT_TRUE(
      (GrpoOptions{.num_mini_batches = 2, .sampling_correction = corrected}).recomputes_old());
  EXPECT_FALSE(
      (GrpoOptions{.num_iterations = 2, .sampling_correction = corrected}).recomputes_old());
  EXPECT_TRUE((GrpoOptions{.sampling_correction = corrected, .max_staleness = 1}).ratio_is_one());
  EXPECT_FALSE((GrpoOptions{.old_logps = OldPolicy::kGenerator}).ratio_is_one());
}

// Three prompts at the end of an epoch, in two mini-batches on one rank and on two.
TEST(GrpoBatchPlaces, AreTheSamePromptsInEveryLayout) {
  const BatchSizes one{
      .num_generations = 2, .num_mini_batches = 2, .micro_batches = 2, .rows_per_micro_batch = 3};
  using Batches = std::vector<std::vector<size_t>>;
  EXPECT_EQ(mini_batch_split(6, {.num_generations = 2,
                                 .num_mini_batches = 2,
                                 .micro_batches = 2,
                                 .rows_per_micro_batch = 3}),
            (Batches{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}}));
  EXPECT_EQ(mini_batch_split(3, one), (Batches{{0, 1}, {}, {2, 3, 4}, {5}}));

  // On two ranks prompts 0 and 2 are places 0 and 1 of the first.
  BatchSizes split = one;
  split.dp_size = 2;
  EXPECT_EQ(mini_batch_split(3, split), (Batches{{0, 1}, {}, {2, 3}, {}}));
  split.dp_rank = 1;
  EXPECT_EQ(mini_batch_split(3, split), (Batches{{}, {}, {0, 1}, {}}));
}

// ---- prompts without a signal ----

// Completions of prompt 0 are all short enough, of prompts 1 and 2 some.
const std::vector<rewards::RewardOptions> kShort{
    {.type = rewards::RewardType::kLength, .weight = 0.1, .max = 4}};

TEST_F(GrpoOptionsTest, APromptWithoutSignalIsReplacedByTheNextOne) {
  const GrpoOptions options{.max_resamples = 2};
  Setting some = setting(options);
  some.rewards = kShort;
  std::vector<Known> samples = samples_of({2, 1});
  for (Known& sample : samples) {
    sample.reward = sample.length() <= 4 ? 0.1 : 0;
    sample.old = at::Tensor();
  }
  compare_groups(samples, kGenerations);

  const Run run = start(some);
  const StepInfo info = run.objective->next_step(1);
  const Run again = start(some);
  const Computed computed = compute(*again.objective, 1, student_);
  expect_formula(computed, formula(student_, samples, options));
  EXPECT_EQ(metric(computed.row, "num_resampled_prompts"), 1);
  EXPECT_EQ(metric(computed.row, "frac_reward_zero_std"), 0);
  EXPECT_EQ(metric(computed.row, "generation_time"),
            2 * test::FakeSampleSource::kGenerationSeconds);

  ASSERT_EQ(run.samples->asked.size(), 2u);
  EXPECT_EQ(run.samples->asked[1].sample_ids, (std::vector<uint64_t>{8, 9, 10, 11}));
  EXPECT_EQ(run.samples->asked[1].prompts.front(), files_.prompts()->get(2)->prompt_ids);
  EXPECT_EQ(info.after.total, 3) << "behind the prompt that stands in";

  // The next round goes on behind it, and so does a resumed run.
  run.objective->next_step(2);
  EXPECT_EQ(run.samples->asked[2].prompts.front(), files_.prompts()->get(3)->prompt_ids);
  some.start_step = 1;
  some.start_cursor = info.after;
  const Run resumed = start(some);
  resumed.objective->next_step(2);
  EXPECT_EQ(resumed.samples->asked[0].prompts, run.samples->asked[2].prompts);
  EXPECT_EQ(resumed.samples->asked[0].sample_ids, run.samples->asked[2].sample_ids);
}

// A round that stands in the way of none was drawn anew while the next one was requested already:
// its prompts lie behind the next round's, and a run that is resumed after that one knows it.
TEST_F(GrpoOptionsTest, ACheckpointLiesBehindAllPromptsThatWereDrawn) {
  Setting ahead = setting({.max_staleness = 1, .max_resamples = 1});
  ahead.rewards = kShort;
  ahead.save_steps = 2;
  const Run run = start(ahead);
  EXPECT_EQ(run.objective->next_step(1).after.total, 2) << "round 1 is drawn again";
  ASSERT_EQ(run.samples->asked.size(), 3u);
  EXPECT_EQ(run.samples->asked[2].prompts.front(), files_.prompts()->get(4)->prompt_ids);
  EXPECT_EQ(run.objective->next_step(2).after.total, 5);
  EXPECT_EQ(run.samples->asked.size(), 3u) << "round 1 has a signal";
}

TEST_F(GrpoOptionsTest, EachStepOfARolloutHasAPrompt) {
  const Run run = start(setting({.num_mini_batches = 2}));
  for (const int64_t step : {1, 3, 5})
    run.objective->next_step(step);

  // One prompt is left of the epoch; the next one's first comes to it.
  ASSERT_EQ(run.samples->asked.size(), 3u);
  EXPECT_EQ(run.samples->asked[2].sample_ids,
            (std::vector<uint64_t>{16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(run.samples->asked[2].prompts.back(), files_.prompts()->get(0)->prompt_ids);
}

TEST_F(GrpoOptionsTest, PromptsAreDrawnAnewSoOftenAndNoMore) {
  GrpoOptions options;
  options.max_resamples = 2;
  Setting equal = setting(options);
  equal.rewards = {{.type = rewards::RewardType::kLength, .min = 1}};
  const Run run = start(equal);
  const Computed computed = compute(*run.objective, 1, student_);
  EXPECT_EQ(metric(computed.row, "frac_reward_zero_std"), 1);
  // Two prompts, then two, then the last one of the epoch.
  ASSERT_EQ(run.samples->asked.size(), 3u);
  EXPECT_EQ(run.samples->asked[2].prompts.size(), 1u);
  EXPECT_EQ(metric(computed.row, "num_resampled_prompts"), 3);
}

}  // namespace
}  // namespace retort::recipes
