// The loss of GRPO against its formula, and what it reports of a round.
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tests/recipes/objectives/grpo_loss_fixture.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using losses::PolicyLossType;
using test::Expected, test::Known;

class GrpoObjectiveTest : public GrpoLossTest {
 protected:
  using GrpoLossTest::GrpoLossTest;
};

TEST_F(GrpoObjectiveTest, LossAndGradientAreTheClippedSurrogates) {
  const std::vector<Known> samples = first_round();
  for (const PolicyLossType type : {PolicyLossType::kGrpo, PolicyLossType::kBnpo,
                                    PolicyLossType::kDrGrpo, PolicyLossType::kDapo}) {
    SCOPED_TRACE(enum_name(type));
    GrpoOptions options = kStale;
    options.loss_type = type;
    const Run run = start(setting(options));
    const Computed computed = compute(*run.objective, 1, student_);
    const Expected expected = formula(student_, samples, options);
    EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(), 1e-5);
    expect_same_gradient(computed.loss, expected.loss);

    // Of 22 tokens the ratio of one is too low to be lowered, of five too high to be raised.
    EXPECT_EQ(expected.clipped_low, 1);
    EXPECT_EQ(expected.clipped_high, 5);
    EXPECT_NEAR(metric(computed.row, "clip_ratio/low_mean"), 1.0 / 22, 1e-12);
    EXPECT_NEAR(metric(computed.row, "clip_ratio/high_mean"), 5.0 / 22, 1e-12);
    EXPECT_NEAR(metric(computed.row, "clip_ratio/region_mean"), 6.0 / 22, 1e-12);
    EXPECT_NEAR(metric(computed.row, "entropy"), expected.entropy, 1e-5);
  }
}

TEST_F(GrpoObjectiveTest, SequenceRatiosAreTheGeometricMeanOfTheTokens) {
  GrpoOptions options = kStale;
  options.importance_sampling_level = losses::ImportanceSamplingLevel::kSequence;
  const Run run = start(setting(options));
  const Computed computed = compute(*run.objective, 1, student_);
  const double expected = formula(student_, first_round(), options).loss.item<double>();
  EXPECT_NEAR(computed.loss.item<double>(), expected, 1e-5);

  const double by_token = formula(student_, first_round(), kStale).loss.item<double>();
  EXPECT_GT(std::abs(by_token - expected), 1e-3) << "or the test shows nothing";
}

// As an episode: behind a prompt of its own the model says one token, its environment two, and the
// model the rest. What the generator says of the model's tokens is that of the answer without them.
Known as_episode(Known sample) {
  const std::array<int32_t, 2> said{test::word(11), test::word(12)};
  sample.prompt.push_back(test::word(40));
  models::Completion& completion = sample.completion;
  const auto insert = [](auto& values, size_t at, const auto& more) {
    values.insert(values.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
  };
  const auto rest = static_cast<int64_t>(completion.token_ids.size()) - 1;
  insert(completion.token_ids, 1, said);
  insert(completion.sampling_logps, 1, std::array<float, 2>{});
  insert(completion.logps, 1, std::array<float, 2>{});

  sample.targets = {0};
  for (int64_t i = 0; i < rest; ++i)
    sample.targets.push_back(3 + i);
  completion.spans = {{models::SpanSource::kModel, 1, 1}, {models::SpanSource::kEnvironment, 0, 2}};
  if (rest > 0) completion.spans.push_back({models::SpanSource::kModel, 1, rest});
  completion.episode = R"({"reward": null, "metrics": {"solved": 1}, "messages": [], "turns": 2,)"
                       R"( "calls": 4, "failed_calls": 1, "malformed": 0})";
  return sample;
}

// The same with its prompt, as a generator sends it.
models::Completion sent(const Known& episode) {
  models::Completion completion = episode.completion;
  const std::vector<float> none(episode.prompt.size());
  completion.token_ids.insert(completion.token_ids.begin(), episode.prompt.begin(),
                              episode.prompt.end());
  completion.sampling_logps.insert(completion.sampling_logps.begin(), none.begin(), none.end());
  completion.logps.insert(completion.logps.begin(), none.begin(), none.end());
  completion.spans.insert(
      completion.spans.begin(),
      {models::SpanSource::kPrompt, 0, static_cast<int64_t>(episode.prompt.size())});
  return completion;
}

TEST_F(GrpoObjectiveTest, AnEnvironmentsTokensAreReadButNoTargets) {
  std::vector<Known> samples = first_round();
  for (Known& sample : samples)
    sample = as_episode(std::move(sample));
  Setting episodes = setting(kStale);
  episodes.episodes = true;
  episodes.answer = [this](const data::PromptSample& prompt, uint64_t id, uint64_t) {
    return sent(as_episode(answered(prompt.prompt_ids, id)));
  };

  for (const PolicyLossType type : {PolicyLossType::kGrpo, PolicyLossType::kDapo}) {
    SCOPED_TRACE(enum_name(type));
    episodes.grpo.loss_type = type;
    const Run run = start(episodes);
    const Computed computed = compute(*run.objective, 1, student_);
    const Expected expected = formula(student_, samples, episodes.grpo);
    EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(), 1e-5);
    expect_same_gradient(computed.loss, expected.loss);
    EXPECT_NEAR(metric(computed.row, "entropy"), expected.entropy, 1e-5);

    // Lengths are those of the model's own tokens, of which the rewards by length are, too.
    EXPECT_NEAR(metric(computed.row, "completions/mean_length"), 22.0 / 8, 1e-12);
    EXPECT_EQ(metric(computed.row, "episodes/mean_environment_tokens"), 2);
    EXPECT_EQ(metric(computed.row, "episodes/mean_turns"), 2);
    EXPECT_EQ(metric(computed.row, "tools/call_frequency"), 4);
    EXPECT_EQ(metric(computed.row, "tools/failure_frequency"), 0.25);
    EXPECT_EQ(metric(computed.row, "environment/solved"), 1);
  }
}

// The same, given up by its environment before the model said anything.
models::Completion lost(Known sample, const std::string& why) {
  models::Completion& completion = sample.completion;
  completion.token_ids.clear();
  completion.logps.clear();
  completion.sampling_logps.clear();
  completion.spans.clear();
  completion.finish_reason = models::FinishReason::kLength;
  completion.episode = R"({"reward": null, "messages": [], "turns": 0, "calls": 0,)"
                       R"( "failed_calls": 0, "malformed": 0, "unscorable": ")" +
                       why + "\"}";
  return completion;
}

TEST_F(GrpoObjectiveTest, EpisodesThatWereLostAreInNoLength) {
  std::vector<Known> samples = first_round();
  const std::vector<int32_t> first = samples.front().prompt;
  Setting episodes = setting(kStale);
  episodes.episodes = true;
  episodes.answer = [this, &first](const data::PromptSample& prompt, uint64_t id, uint64_t) {
    const Known known = answered(prompt.prompt_ids, id);
    if (prompt.prompt_ids == first) return lost(known, "the program is gone");
    return sent(as_episode(known));
  };
  const Run run = start(episodes);
  const Computed computed = compute(*run.objective, 1, student_);

  double tokens = 0, cut = 0, ended = 0;
  for (const Known& sample : samples)
    if (sample.prompt != first) {
      ended += 1;
      tokens += static_cast<double>(sample.completion.token_ids.size());
      cut += sample.completion.finish_reason == models::FinishReason::kLength;
    }
  EXPECT_EQ(ended, kGenerations);
  EXPECT_EQ(metric(computed.row, "num_unscorable"), kGenerations);
  EXPECT_EQ(metric(computed.row, "episodes/num_lost"), kGenerations);
  EXPECT_NEAR(metric(computed.row, "completions/mean_length"), tokens / ended, 1e-12);
  EXPECT_NEAR(metric(computed.row, "completions/clipped_ratio"), cut / ended, 1e-12);
}

// A run that went on would learn nothing, and nobody would see why.
TEST_F(GrpoObjectiveTest, ARoundWithoutAnEpisodeThatCanBeScoredIsAnError) {
  Setting episodes = setting(kStale);
  episodes.episodes = true;
  episodes.answer = [this](const data::PromptSample& prompt, uint64_t id, uint64_t) {
    return lost(answered(prompt.prompt_ids, id), "the program is gone");
  };
  const Run run = start(episodes);
  const std::string message = test::message_of([&] { run.objective->next_step(1); },
                                               ErrorCode::kUnavailable);
  EXPECT_NE(message.find("not one of the 8 episodes of this round can be scored; the first of this "
                         "rank: the program is gone"),
            std::string::npos)
      << message;
}

// A generator that reports other log-probabilities by a tenth is seen.
TEST_F(GrpoObjectiveTest, TheLossDependsOnTheGeneratorsLogProbabilities) {
  const Run good = start(setting(kStale));
  Setting wrong = setting(kStale);
  wrong.answer = [this](const data::PromptSample& prompt, uint64_t id, uint64_t) {
    models::Completion completion = answered(prompt.prompt_ids, id).completion;
    for (float& logp : completion.sampling_logps)
      logp += 0.1f;
    return completion;
  };
  const Run bad = start(wrong);

  const double expected = formula(student_, first_round(), kStale).loss.item<double>();
  EXPECT_NEAR(compute(*good.objective, 1, student_).loss.item<double>(), expected, 1e-5);
  const double other = compute(*bad.objective, 1, student_).loss.item<double>();
  EXPECT_GT(std::abs(other - expected), 1e-3);
}

TEST_F(GrpoObjectiveTest, SamplesOfTheStudentItselfHaveTheRatioOne) {
  std::vector<Known> samples = first_round();
  for (Known& sample : samples)
    sample.old = at::Tensor();
  const Run run = start(setting({}));
  const Computed computed = compute(*run.objective, 1, student_);
  const Expected expected = formula(student_, samples, {});
  EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(), 1e-5);
  EXPECT_EQ(metric(computed.row, "clip_ratio/region_mean"), 0);
  expect_same_gradient(computed.loss, expected.loss);
}

// The second step on the same samples, with other weights: the old policy is the one of the first.
TEST_F(GrpoObjectiveTest, LaterIterationsCompareWithTheFirst) {
  const GrpoOptions twice{.num_iterations = 2};
  std::vector<Known> samples = first_round();
  for (Known& sample : samples)
    sample.old = of_tokens(distributions(student_, sample, kTemperature), sample).detach();
  const Run run = start(setting(twice));
  compute(*run.objective, 1, student_);

  const models::Decoder later = trainable(8);
  const Computed second = compute(*run.objective, 2, later);
  const double expected = formula(later, samples, twice).loss.item<double>();
  EXPECT_NEAR(second.loss.item<double>(), expected, 1e-4 * (1 + std::abs(expected)));
  EXPECT_GT(metric(second.row, "clip_ratio/region_mean"), 0);
  EXPECT_EQ(run.samples->asked.size(), 1u) << "one round";
}

// Ratios trainer / generator as weights instead, none of them above the cap.
TEST_F(GrpoObjectiveTest, ASamplingCorrectionWeighsTokens) {
  const GrpoOptions corrected{.sampling_correction = CorrectionChoice::kTokenTruncate,
                              .importance_sampling_cap = 1.5};
  double loss = 0;
  double weights = 0, squares = 0, differences = 0, surprise = 0;
  double tokens = 0;
  for (const Known& sample : first_round()) {
    const at::Tensor all = distributions(student_, sample, kTemperature);
    const at::Tensor logps = of_tokens(all, sample);
    surprise += (all.exp() * all).sum().item<double>() - sample.old.sum().item<double>();
    const at::Tensor ratios = (logps - sample.old).exp().clamp_max(1.5);
    const double weight = ratios.sum().item<double>();
    loss -= sample.advantage * weight;
    weights += weight;
    squares += ratios.square().sum().item<double>();
    differences += (logps - sample.old).abs().sum().item<double>();
    tokens += static_cast<double>(sample.length());
  }

  const Run run = start(setting(corrected));
  const Computed computed = compute(*run.objective, 1, student_);
  EXPECT_NEAR(computed.loss.item<double>(), loss / tokens, 1e-5);
  EXPECT_NEAR(metric(computed.row, "sampling_ratio/mean"), weights / tokens, 1e-5);
  EXPECT_NEAR(metric(computed.row, "sampling_ratio/effective_sample_size"),
              weights * weights / (tokens * squares), 1e-5);
  EXPECT_NEAR(metric(computed.row, "sampling_logp_difference/mean"), differences / tokens, 1e-5);
  EXPECT_NEAR(metric(computed.row, "sampling_surprise/mean"), surprise / tokens, 1e-5);
}

TEST_F(GrpoObjectiveTest, EqualRewardsTeachNothing) {
  Setting equal = setting(kStale);
  equal.rewards = {{.type = rewards::RewardType::kLength, .min = 1}};
  const Run run = start(equal);
  const Computed computed = compute(*run.objective, 1, student_);
  EXPECT_EQ(computed.loss.item<double>(), 0);
  EXPECT_EQ(gradient(computed.loss).abs().max().item<double>(), 0);
  EXPECT_EQ(metric(computed.row, "reward"), 1);
  EXPECT_EQ(metric(computed.row, "frac_reward_zero_std"), 1);
}

// A group of equal rewards is not computed: what is left has the loss and the gradient that all
// have, because the divisor counts all.
TEST_F(GrpoObjectiveTest, AGroupWithoutSignalIsOnlyCounted) {
  std::vector<Known> samples = first_round();
  Setting some = setting(kStale);
  some.rewards = {{.type = rewards::RewardType::kLength, .weight = 0.1, .max = 4}};
  for (Known& sample : samples)
    sample.reward = sample.length() <= 4 ? 0.1 : 0;
  compare_groups(samples, kGenerations);
  for (const PolicyLossType type :
       {PolicyLossType::kGrpo, PolicyLossType::kDrGrpo, PolicyLossType::kDapo}) {
    SCOPED_TRACE(enum_name(type));
    some.grpo.loss_type = type;
    const Run run = start(some);
    const Computed computed = compute(*run.objective, 1, student_);
    const Expected expected = formula(student_, samples, some.grpo);
    EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(), 1e-5);
    expect_same_gradient(computed.loss, expected.loss);
    EXPECT_EQ(metric(computed.row, "frac_without_signal"), 0.5);
  }

  // Micro-batches of three: the first has only samples of the first group.
  const Run run = start(some);
  run.objective->next_step(1);
  EXPECT_EQ(run.objective->tokens(0).num_sequences(), 0);
  EXPECT_EQ(run.objective->tokens(1).num_sequences(), 2);
  EXPECT_EQ(run.objective->tokens(2).num_sequences(), 2);
}

TEST_F(GrpoObjectiveTest, MetricsDescribeTheRound) {
  std::vector<int64_t> lengths;
  std::vector<double> rewards;
  for (const Known& sample : first_round()) {
    lengths.push_back(sample.length());
    rewards.push_back(sample.reward);
  }
  EXPECT_EQ(lengths, (std::vector<int64_t>{1, 2, 3, 4, 6, 1, 2, 3}));
  EXPECT_EQ(rewards, (std::vector<double>{0.5, 0, 1, 1, 1, 0.5, 0, 1}));

  const Run run = start(setting(kStale));
  const MetricsRow row = compute(*run.objective, 1, student_).row;
  EXPECT_NEAR(metric(row, "reward"), 5.0 / 8, 1e-12);
  EXPECT_NEAR(metric(row, "reward_std"), std::sqrt(1.375 / 7), 1e-12);
  EXPECT_EQ(metric(row, "frac_reward_zero_std"), 0);
  EXPECT_EQ(metric(row, "num_unscorable"), 0);
  EXPECT_EQ(metric(row, "rewards/long"), 0.5);
  EXPECT_EQ(metric(row, "rewards/single"), 0.25);
  EXPECT_EQ(metric(row, "completions/mean_length"), 22.0 / 8);
  EXPECT_EQ(metric(row, "completions/clipped_ratio"), 1.0 / 8);
  EXPECT_EQ(metric(row, "weight_version"), 1);
  EXPECT_EQ(metric(row, "generation_time"), test::FakeSampleSource::kGenerationSeconds);
  EXPECT_EQ(metric(row, "generator_wait_time"), test::FakeSampleSource::kWaitSeconds);
  EXPECT_EQ(metric(row, "weight_sync_time"), test::FakeSampleSource::kPushSeconds);
}

// A program that scores by the number of tokens, but knows nothing of completions of two.
TEST_F(GrpoObjectiveTest, AnUnscorableSampleTakesPartInNothing) {
  const std::string id = R"(.*"id": *\([0-9]*\).*)";
  const std::string of_two = "s/" + id + R"("num_tokens": *2[,}].*/{"id":\1,"score":null}/)";
  const std::string of_any = "s/" + id + R"("num_tokens": *\([0-9]*\).*/{"id":\1,"score":\2}/)";
  Setting some = setting(kStale);
  some.rewards = {{.type = rewards::RewardType::kCommand,
                   .argv = {"sed", "-u", "-e", of_two, "-e", "t", "-e", of_any}}};
  const Run run = start(some);
  const Computed computed = compute(*run.objective, 1, student_);

  // What is left of the groups: samples 0, 2, 3 and 4, 5, 7.
  std::vector<Known> scorable;
  for (Known& sample : first_round()) {
    sample.reward = static_cast<double>(sample.length());
    if (sample.length() != 2) scorable.push_back(std::move(sample));
  }
  compare_groups(scorable, 3);
  const Expected expected = formula(student_, scorable, kStale);
  EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(), 1e-5);
  EXPECT_EQ(metric(computed.row, "num_unscorable"), 2);
  EXPECT_NEAR(metric(computed.row, "reward"), 3, 1e-12);
  EXPECT_EQ(metric(computed.row, "completions/mean_length"), 22.0 / 8) << "of all";
}

// Prompts long enough to be computed once for all completions of a micro-batch.
class GrpoSharedPromptTest : public GrpoObjectiveTest {
 protected:
  GrpoSharedPromptTest() : GrpoObjectiveTest(at::kCPU, /*more_words=*/18) {}
};

TEST_F(GrpoSharedPromptTest, LossAndGradientAreThoseOfSamplesByThemselves) {
  const Run run = start(setting(kStale));
  const Computed computed = compute(*run.objective, 1, student_);
  const Expected expected = formula(student_, first_round(), kStale);
  EXPECT_NEAR(computed.loss.item<double>(), expected.loss.item<double>(), 1e-5);
  expect_same_gradient(computed.loss, expected.loss);

  // Micro-batches of three, of completions of 1, 2, 3; 4, 6, 1; 2, 3 tokens. The second has samples
  // of both prompts.
  const Run again = start(setting(kStale));
  again.objective->next_step(1);
  const auto prompt = [&](int64_t i) {
    return static_cast<int64_t>(files_.prompts()->get(i)->prompt_ids.size());
  };
  EXPECT_EQ(again.objective->tokens(0).num_tokens(), prompt(0) + 1 + 2 + 3);
  EXPECT_EQ(again.objective->tokens(1).num_tokens(), prompt(0) + 4 + prompt(1) + 6 + 1);
  EXPECT_EQ(again.objective->tokens(2).num_tokens(), prompt(1) + 2 + 3);
}

TEST_F(GrpoObjectiveTest, OriginsNameThePromptsOfAMicroBatch) {
  const Run run = start(setting({}));
  run.objective->next_step(1);
  const std::string first = files_.prompts()->origin(0);
  const std::string second = files_.prompts()->origin(1);
  EXPECT_EQ(run.objective->origins(0), first + ", " + first + ", " + first);
  EXPECT_EQ(run.objective->origins(1), first + ", " + second + ", " + second);
}

}  // namespace
}  // namespace retort::recipes
