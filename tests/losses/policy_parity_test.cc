// Policy losses, gradients, metrics and advantages against TRL 1.16.0's GRPOTrainer and RLOOTrainer
// (make_trl_goldens.py), from hidden states to the gradient of hidden states and head; then wrong
// formulas against the same numbers.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "recipes/losses/advantages.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/policy.h"
#include "tests/losses/fixtures.h"
#include "tests/losses/trl_fixtures.h"

namespace retort::losses::policy {
namespace {

constexpr double kTolerance = 1e-5;
constexpr int64_t kPrompt = 2, kLongest = 6, kSamples = 8;

// The batch of the goldens as packed rows; `masked`: completions that were cut off have none.
struct Batch {
  explicit Batch(bool masked)
      : packing(trl_goldens().tensor("samples.mask") *
                (masked ? 1 - trl_goldens().tensor("samples.truncated").unsqueeze(1)
                        : at::ones({1}))) {}

  at::Tensor rows(const std::string& name) const {  // position t predicts token t + 1
    return packing.rows(trl_goldens().tensor("samples." + name).narrow(1, kPrompt - 1, kLongest));
  }
  at::Tensor tokens_of(const std::string& name) const {
    return packing.rows(trl_goldens().tensor("samples." + name));
  }
  at::Tensor targets() const { return tokens_of("ids").to(at::kLong); }
  at::Tensor weight() const { return trl_goldens().tensor("samples.weight"); }
  at::Tensor log_probs(const std::string& name, double temperature) const {
    return linear_log_probs(rows(name), weight(), {}, targets(), {.temperature = temperature})
        .log_probs;
  }

  Packing packing;
};

PolicyOptions options_of(const TrlRecord& c) {
  PolicyOptions options;
  options.loss_type = parse_enum<PolicyLossType>(c.text("loss_type"));
  options.importance_sampling_level = parse_enum<ImportanceSamplingLevel>(c.text("level"));
  options.epsilon = c.number("epsilon");
  if (c.text("epsilon_high") != "-") options.epsilon_high = c.number("epsilon_high");
  if (c.text("delta") != "-") options.delta = c.number("delta");
  if (c.text("off_policy") != "-") options.off_policy_mask_threshold = c.number("off_policy");
  options.beta = c.number("beta");
  options.use_bias_correction_kl = c.number("bias_correction") != 0;
  options.sampling_correction = parse_enum<SamplingCorrection>(c.text("correction"));
  options.importance_sampling_cap = c.number("cap");
  return options;
}

PolicyInputs inputs_of(const TrlRecord& c, const Batch& batch, const PolicyOptions& options,
                       const at::Tensor& policy_logps) {
  const double temperature = c.number("temperature");
  PolicyInputs in;
  in.policy_logps = policy_logps;
  if (c.number("old") != 0 || options.sampling_correction != SamplingCorrection::kNone)
    in.old_logps = batch.log_probs("old", temperature);
  if (options.beta > 0) in.reference_logps = batch.log_probs("reference", temperature);
  if (options.sampling_correction != SamplingCorrection::kNone)
    in.generator_logps = batch.tokens_of("generator");
  in.sequence_of_row = batch.packing.sequence;
  in.advantages =
      group_advantages(trl_goldens().tensor("samples.rewards"), 4, ScaleRewards::kGroup).advantages;
  in.num_sequences = kSamples;
  return in;
}

PolicyCounts counts_of(const TrlRecord& c, const Batch& batch) {
  return {.sequences = kSamples,
          .tokens = batch.packing.count(),
          .max_completion_tokens = static_cast<int64_t>(c.number("max_completion"))};
}

bool divides_by_tokens(PolicyLossType type) {
  return type == PolicyLossType::kDapo || type == PolicyLossType::kCispo ||
         type == PolicyLossType::kBnpo;
}

struct Measured {
  double loss = 0;
  at::Tensor dh, dw;
  PolicyResult result;
  PolicyCounts counts;
};

Measured run(const TrlRecord& c, const PolicyOptions& options,
             const std::function<void(PolicyInputs&)>& change = {}) {
  const Batch batch(c.number("masked") != 0);
  const at::Tensor hidden = batch.rows("hidden").requires_grad_(),
                   weight = batch.weight().clone().requires_grad_();
  const at::Tensor logps =
      linear_log_probs(hidden, weight, {}, batch.targets(),
                       {.temperature = c.number("temperature"), .chunk_tokens = 8})
          .log_probs;
  PolicyInputs in = inputs_of(c, batch, options, logps);
  if (change) change(in);
  Measured measured;
  measured.result = policy_loss(in, options);
  measured.counts = counts_of(c, batch);
  const at::Tensor loss =
      measured.result.loss_sum / policy_divisor(options.loss_type, measured.counts);
  loss.backward();
  measured.loss = loss.item<double>();
  measured.dh = at::constant_pad_nd(batch.packing.padded(hidden.grad()), {0, 0, kPrompt - 1, 1});
  measured.dw = weight.grad();
  return measured;
}

void expect_near(double got, double expected, const char* what) {
  EXPECT_NEAR(got, expected, kTolerance * std::max(std::abs(expected), 1e-2)) << what;
}

void expect_metrics(const TrlRecord& c, const PolicyResult& r) {
  const auto expect_ratio = [&](const char* key, double sum, double count) {
    if (c.has(key)) expect_near(sum / count, c.number(key), key);
  };
  expect_ratio("kl", r.kl_sum, static_cast<double>(r.num_tokens));
  const double clips = static_cast<double>(r.clip_count);
  expect_ratio("clip_ratio/low_mean", r.clip_low_sum, clips);
  expect_ratio("clip_ratio/high_mean", r.clip_high_sum, clips);
  expect_ratio("clip_ratio/region_mean", r.clip_region_sum, clips);
  expect_ratio("cispo_clip_ratio", r.clip_high_sum, clips);
  expect_ratio("sampling/sampling_logp_difference/mean", r.sampling_logp_difference_sum,
               static_cast<double>(r.num_tokens));
  expect_ratio("sampling/sampling_logp_difference/max", r.sampling_logp_difference_max, 1);
  expect_ratio("sampling/importance_sampling_ratio/mean", r.sampling_ratio_sum,
               static_cast<double>(r.sampling_ratio_count));
  expect_ratio("sampling/importance_sampling_ratio/min", r.sampling_ratio_min, 1);
  expect_ratio("sampling/importance_sampling_ratio/max", r.sampling_ratio_max, 1);
}

TEST(PolicyParity, EveryLossLevelAndCorrectionOfTrl) {
  const auto cases = trl_goldens().of_kind("policy");
  ASSERT_GE(cases.size(), 40u);
  int clipped = 0, dropped = 0, bounded = 0, capped = 0;
  for (const TrlRecord& c : cases) {
    SCOPED_TRACE(c.name + " " + c.text("loss_type") + " " + c.text("level") + " " +
                 c.text("correction"));
    const Measured got = run(c, options_of(c));
    const double scale = std::max(std::abs(c.number("loss")), 1e-2);
    EXPECT_NEAR(got.loss, c.number("loss"), kTolerance * scale);
    EXPECT_NEAR(got.loss, c.number("loss32"), 2 * kTolerance * scale);
    EXPECT_LT(relative_difference(got.dh, trl_goldens().tensor(c.name + ".dh")), kTolerance);
    EXPECT_LT(relative_difference(got.dw, trl_goldens().tensor(c.name + ".dw")), kTolerance);
    expect_metrics(c, got.result);
    clipped += got.result.clip_low_sum > 0 && got.result.clip_high_sum > 0;
    bounded += got.result.clip_delta_sum > 0;
    capped += c.text("loss_type") == "cispo" && got.result.clip_high_sum > 0;
    dropped += got.result.sampling_ratio_count > 0 && got.result.sampling_ratio_min == 0;
  }
  EXPECT_GE(clipped, 10);  // the cases reach what they are for
  EXPECT_GE(dropped, 2);
  EXPECT_GE(bounded, 2);
  EXPECT_GE(capped, 4);
}

TEST(PolicyParity, EntropyAtTheSamplingTemperature) {
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    const Batch batch(c.number("masked") != 0);
    const LogProbs got =
        linear_log_probs(batch.rows("hidden"), batch.weight(), {}, batch.targets(),
                         {.temperature = c.number("temperature"), .entropy = true});
    if (c.has("entropy"))
      expect_near(got.entropy.mean().item<double>(), c.number("entropy"), "entropy");
  }
}

TEST(PolicyParity, AdvantagesOfTrl) {
  const auto cases = trl_goldens().of_kind("advantages");
  ASSERT_EQ(cases.size(), 15u);
  for (const TrlRecord& c : cases) {
    SCOPED_TRACE(c.text("rewards") + " " + c.text("estimator"));
    const at::Tensor rewards = trl_goldens().tensor("rewards." + c.text("rewards"));
    const std::string& estimator = c.text("estimator");
    const Advantages got = estimator == "rloo" ? rloo_advantages(rewards, 4)
                           : estimator == "rloo_normalized"
                               ? rloo_advantages(rewards, 4, true)
                               : group_advantages(rewards, 4, parse_enum<ScaleRewards>(estimator));
    // TRL's deviations are float32 sums around 5 with differences of 1e-3 in "small".
    EXPECT_LT(relative_difference(got.advantages, trl_goldens().tensor(c.name + ".advantages")),
              c.text("rewards") == "small" ? 1e-3 : kTolerance);
    EXPECT_NEAR(got.frac_reward_zero_std, c.number("frac_reward_zero_std"), 1e-6);
    expect_near(got.reward_mean, c.number("reward"), "reward");
    expect_near(got.reward_std, c.number("reward_std"), "reward_std");
    EXPECT_EQ(got.num_unscorable, 0);
  }
}

// ---- wrong formulas must not pass ----

void expect_detected(const TrlRecord& c, const Measured& wrong) {
  SCOPED_TRACE(c.name);
  EXPECT_GT(relative_difference(wrong.dh, trl_goldens().tensor(c.name + ".dh")), 100 * kTolerance);
}
void expect_detected(const TrlRecord& c, double wrong_loss) {
  EXPECT_GT(std::abs(wrong_loss - c.number("loss")), 100 * kTolerance * std::abs(c.number("loss")))
      << c.name;
}

TEST(PolicyMutation, AWrongCountIsDetected) {
  int checked = 0;
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    const PolicyOptions options = options_of(c);
    const Measured got = run(c, options);
    const double sum = got.result.loss_sum.item<double>();
    const double truth = policy_divisor(options.loss_type, got.counts);
    const auto n = [](int64_t count) { return static_cast<double>(count); };
    for (double wrong : {n(got.counts.sequences), n(got.counts.tokens),
                         n(Batch(false).packing.count()),  // of completions that were cut off, too
                         n(kSamples * kLongest),           // padding counted as zeros
                         n(got.counts.sequences - 2), n(2)})
      if (wrong != truth) {
        expect_detected(c, sum / wrong);
        ++checked;
      }
  }
  EXPECT_GE(checked, 100);
}

// In grpo a sequence without rows counts; leaving it out gives another mean. In the losses that
// divide by tokens it must not count, as it did in dapo and cispo before TRL 1.16.
TEST(PolicyMutation, SequencesWithoutRowsAreCountedAsTrlDoes) {
  int checked = 0;
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    if (c.number("masked") == 0) continue;
    const PolicyOptions options = options_of(c);
    const Measured got = run(c, options);
    PolicyCounts wrong = got.counts;
    if (divides_by_tokens(options.loss_type))
      wrong.tokens = Batch(false).packing.count();
    else
      wrong.sequences -= 2;
    expect_detected(c,
                    got.result.loss_sum.item<double>() / policy_divisor(options.loss_type, wrong));
    ++checked;
  }
  EXPECT_GE(checked, 8);
}

TEST(PolicyMutation, AnotherReductionLevelOrClippingIsDetected) {
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    if (c.number("old") == 0 || c.text("correction") != "none") continue;
    if (c.text("loss_type") == "cispo") continue;  // below
    PolicyOptions wrong = options_of(c);
    const bool by_sequences =
        wrong.loss_type == PolicyLossType::kGrpo || wrong.loss_type == PolicyLossType::kDrGrpo;
    wrong.loss_type = by_sequences ? PolicyLossType::kDapo : PolicyLossType::kDrGrpo;
    expect_detected(c, run(c, wrong));
    wrong = options_of(c);
    wrong.importance_sampling_level = c.text("level") == "token"
                                          ? ImportanceSamplingLevel::kSequence
                                          : ImportanceSamplingLevel::kToken;
    expect_detected(c, run(c, wrong));
    wrong = options_of(c);
    wrong.epsilon = 0.99;
    wrong.delta.reset();
    wrong.epsilon_high = 1e6;
    if (run(c, options_of(c)).result.clip_region_sum > 0) expect_detected(c, run(c, wrong));
  }
}

TEST(PolicyMutation, AMissingOffPolicyMaskIsDetected) {
  int checked = 0;
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    const PolicyOptions options = options_of(c);
    if (!options.off_policy_mask_threshold) continue;
    const int64_t dropped = run(c, options).result.off_policy_masked;
    PolicyOptions wrong = options;
    wrong.off_policy_mask_threshold.reset();
    if (dropped > 0) expect_detected(c, run(c, wrong));
    checked += dropped > 0;
  }
  EXPECT_GE(checked, 3);
}

TEST(PolicyMutation, AnotherCapOrBoundIsDetected) {
  int checked = 0;
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    PolicyOptions wrong = options_of(c);
    const PolicyResult truth = run(c, wrong).result;
    if (wrong.delta && truth.clip_delta_sum > 0) {
      wrong.delta.reset();
      expect_detected(c, run(c, wrong));
      ++checked;
    } else if (wrong.loss_type == PolicyLossType::kCispo && truth.clip_high_sum > 0) {
      wrong.epsilon_high = *wrong.epsilon_high + 1;  // as if it were above 1
      expect_detected(c, run(c, wrong));
      ++checked;
    }
  }
  EXPECT_GE(checked, 6);
}

TEST(PolicyMutation, AReversedOrMissingKlIsDetected) {
  int checked = 0;
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    const PolicyOptions options = options_of(c);
    if (options.beta == 0) continue;
    // k3 of the other direction is what exchanging the two sets of log-probabilities gives: 2
    // policy - reference mirrors d.
    expect_detected(c, run(c, options, [](PolicyInputs& in) {
                      in.reference_logps = 2 * in.policy_logps.detach() - in.reference_logps;
                    }));
    PolicyOptions without = options;
    without.beta = 0;
    without.use_bias_correction_kl = true;
    expect_detected(c,
                    run(c, without, [](PolicyInputs& in) { in.reference_logps = at::Tensor(); }));
    ++checked;
  }
  EXPECT_GE(checked, 10);
}

TEST(PolicyMutation, AWrongSamplingCorrectionIsDetected) {
  for (const TrlRecord& c : trl_goldens().of_kind("policy")) {
    const PolicyOptions options = options_of(c);
    if (options.sampling_correction == SamplingCorrection::kNone) continue;
    expect_detected(c,
                    run(c, options, [](PolicyInputs& in) { in.generator_logps = in.old_logps; }));
    expect_detected(
        c, run(c, options, [](PolicyInputs& in) { std::swap(in.generator_logps, in.old_logps); }));
    for (const auto& [name, mode] : EnumNames<SamplingCorrection>::values) {
      if (mode == options.sampling_correction || mode == SamplingCorrection::kNone ||
          c.number("cap") > 2)
        continue;
      PolicyOptions wrong = options;
      wrong.sampling_correction = mode;
      expect_detected(c, run(c, wrong));
    }
  }
}

TEST(PolicyMutation, ADeviationWithoutBesselOrEpsilonIsDetected) {
  const at::Tensor rewards = trl_goldens().tensor("samples.rewards").reshape({2, 4});
  const at::Tensor truth = trl_goldens().tensor("g0.advantages");
  const at::Tensor centred = rewards - rewards.mean(1, true);
  const at::Tensor biased = (centred / (rewards.std(1, /*unbiased=*/false, true) + 1e-4)).flatten();
  const at::Tensor no_epsilon = (centred / rewards.std(1, true, true)).flatten();
  EXPECT_LT(relative_difference(
                group_advantages(rewards.flatten(), 4, ScaleRewards::kGroup).advantages, truth),
            1e-6);
  EXPECT_GT(relative_difference(biased, truth), 100 * kTolerance);
  EXPECT_GT(relative_difference(no_epsilon, truth), 5 * kTolerance);
}

}  // namespace
}  // namespace retort::losses::policy
