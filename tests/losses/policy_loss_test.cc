// The policy losses by themselves: gradients against finite differences, extremes, parts of a
// batch, on-policy distillation, refusals; and advantages with samples that could not be scored.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "base/error.h"
#include "recipes/losses/advantages.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/losses/policy.h"
#include "tests/losses/fixtures.h"
#include "tests/support/thrown.h"

namespace retort::losses::policy {
namespace {

using test::expect_refused;

at::Tensor vector(std::vector<float> values) { return at::tensor(values, at::kFloat); }
at::Tensor ids(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

PolicyInputs example() {
  PolicyInputs in;
  in.policy_logps = vector({-1.0f, -2.5f, -0.75f, -3, -0.5f, -1.25f, -2});
  in.old_logps = vector({-1.125f, -2.25f, -1.5f, -2.5f, -0.5f, -1.75f, -2.0625f});
  in.sequence_of_row = ids({0, 0, 1, 3, 1, 3, 3});  // interleaved; sequence 2 has no rows
  in.advantages = vector({1.5f, -0.5f, 9, 0.25f});
  in.num_sequences = 4;
  return in;
}

struct Value {
  double loss;
  at::Tensor gradient;
};
Value evaluate(PolicyInputs in, const PolicyOptions& options) {
  in.policy_logps = in.policy_logps.clone().requires_grad_();
  const PolicyResult r = policy_loss(in, options);
  r.loss_sum.backward();
  return {r.loss_sum.item<double>(), in.policy_logps.grad()};
}

// The gradient against central differences of the loss, element by element.
void check_gradient(const PolicyInputs& in, const PolicyOptions& options) {
  const Value exact = evaluate(in, options);
  for (int64_t r = 0; r < 7; ++r) {
    const float step = 1.0f / 256;
    const auto at_offset = [&](float by) {
      PolicyInputs moved = in;
      moved.policy_logps = in.policy_logps.clone();
      moved.policy_logps[r] += by;
      return evaluate(moved, options).loss;
    };
    const double slope = (at_offset(step) - at_offset(-step)) / (2 * step);
    EXPECT_NEAR(exact.gradient[r].item<double>(), slope, 1e-3 + 1e-3 * std::abs(slope)) << r;
  }
}

TEST(PolicyLoss, GradientsAreThoseOfTheValue) {
  for (PolicyLossType type : {PolicyLossType::kGrpo, PolicyLossType::kDapo})
    for (auto level : {ImportanceSamplingLevel::kToken, ImportanceSamplingLevel::kSequence})
      for (double beta : {0.0, 0.5})
        for (bool by_token : {false, true}) {
          PolicyInputs in = example();
          if (beta > 0) in.reference_logps = vector({-1.5f, -2, -1, -2.5f, -0.25f, -1.5f, -2});
          if (by_token) {
            in.token_advantages = vector({1, -1, 0.5f, 0, -2, 1, 0.25f});
            in.advantages = at::Tensor();
          }
          for (const bool corrected : {true, false})
            if (corrected || beta > 0)
              check_gradient(in, {.loss_type = type,
                                  .importance_sampling_level = level,
                                  .epsilon = 0.3,
                                  .beta = beta,
                                  .use_bias_correction_kl = corrected});
        }
}

TEST(PolicyLoss, TheFirstStepIsThePlainPolicyGradient) {
  PolicyInputs in = example();
  in.old_logps = at::Tensor();
  const Value got = evaluate(in, {});
  const at::Tensor expected = -in.advantages.index_select(0, in.sequence_of_row);
  EXPECT_LT(relative_difference(got.gradient, expected), 1e-7);
  in.old_logps = in.policy_logps.clone();
  EXPECT_LT(relative_difference(evaluate(in, {}).gradient, expected), 1e-7);
}

TEST(PolicyLoss, ClippingAndItsMetrics) {
  const PolicyResult r = policy_loss(example(), {.epsilon = 0.3});
  // ratios e^(.125, -.25, .75, -.5, 0, .5, .0625) with A = 1.5 1.5 -.5 .25 -.5 .25 .25: only row 5
  // is above 1.3 with A > 0
  EXPECT_EQ(r.clip_high_sum, 1);
  EXPECT_EQ(r.clip_low_sum, 0);
  EXPECT_EQ(r.clip_count, 7);
  EXPECT_EQ(evaluate(example(), {.epsilon = 0.3}).gradient[5].item<double>(), 0);
  EXPECT_EQ(
      policy_loss(example(), {.importance_sampling_level = ImportanceSamplingLevel::kSequence})
          .clip_count,
      4);
  EXPECT_EQ(r.num_sequences, 4);
}

TEST(PolicyLoss, PartsOfABatchAddUp) {
  for (const auto& [name, type] : EnumNames<PolicyLossType>::values) {
    PolicyOptions options{.loss_type = type};
    if (type == PolicyLossType::kCispo) options.epsilon_high = 1.2;
    const PolicyInputs whole = example();
    const auto part = [&](std::vector<int64_t> rows, std::vector<int64_t> sequences,
                          std::vector<float> advantages) {
      PolicyInputs in;
      in.policy_logps = whole.policy_logps.index_select(0, ids(rows));
      in.old_logps = whole.old_logps.index_select(0, ids(rows));
      in.sequence_of_row = ids(sequences);
      in.advantages = vector(advantages);
      in.num_sequences = in.advantages.size(0);
      return policy_loss(in, options).loss_sum.item<double>();
    };
    EXPECT_NEAR(
        part({0, 1}, {0, 0}, {1.5f}) + part({2, 3, 4, 5, 6}, {0, 2, 0, 2, 2}, {-0.5f, 9, 0.25f}),
        policy_loss(whole, options).loss_sum.item<double>(), 1e-6);
  }
}

TEST(PolicyLoss, FiniteAtExtremes) {
  PolicyInputs in = example();
  in.policy_logps = vector({0, -2000, -0.5f, -3, 0, -1, -1});
  in.old_logps = vector({-2000, 0, -2000, -3, -1, -1, -1});
  in.advantages = vector({1, 1, 1, 1});  // a ratio of infinity is clipped where A > 0
  const Value got = evaluate(in, {});
  EXPECT_TRUE(std::isfinite(got.loss));
  EXPECT_TRUE(got.gradient.isfinite().all().item<bool>());
  EXPECT_EQ(got.gradient[0].item<double>(), 0);
  in.advantages = vector({0, 0, 0, 0});
  EXPECT_EQ(evaluate(in, {}).loss, 0);

  in.policy_logps[1] = NAN;
  EXPECT_TRUE(std::isnan(evaluate(in, {}).loss));
}

TEST(PolicyLoss, NoRowsStillReachThePolicy) {
  const at::Tensor logps = at::empty({0}, at::kFloat).requires_grad_();
  PolicyInputs in;
  in.policy_logps = logps;
  in.sequence_of_row = at::empty({0}, at::kLong);
  in.advantages = vector({1, 2});
  in.num_sequences = 2;
  const PolicyResult r = policy_loss(in, {.loss_type = PolicyLossType::kGrpo});
  r.loss_sum.backward();
  EXPECT_EQ(r.loss_sum.item<double>(), 0);
  EXPECT_EQ(logps.grad().size(0), 0);
}

TEST(PolicyDivisor, OneGlobalNumber) {
  const PolicyCounts counts{.sequences = 8, .tokens = 100, .max_completion_tokens = 64};
  EXPECT_EQ(policy_divisor(PolicyLossType::kGrpo, counts), 8);
  EXPECT_EQ(policy_divisor(PolicyLossType::kBnpo, counts), 100);
  EXPECT_EQ(policy_divisor(PolicyLossType::kDapo, counts), 100);
  EXPECT_EQ(policy_divisor(PolicyLossType::kDrGrpo, counts), 512);
  EXPECT_EQ(policy_divisor(PolicyLossType::kDapo, {}), 1);
}

// ---- on-policy distillation ----

// The expectation over the student's own samples, by enumeration: every id is one sample, weighted
// by its probability.
struct Enumerated {
  at::Tensor logits = at::randn({7}, at::kFloat),
             teacher = at::log_softmax(at::randn({7}, at::kFloat), -1);
  at::Tensor student(const at::Tensor& z) const { return at::log_softmax(z, -1); }
  at::Tensor reverse_kl_gradient() const {
    const at::Tensor z = logits.clone().requires_grad_(), lp = student(z);
    (lp.exp() * (lp - teacher)).sum().backward();
    return z.grad();
  }
};

TEST(OnPolicyDistillation, ItsExpectedGradientIsThatOfReverseKl) {
  const Enumerated e;
  const at::Tensor z = e.logits.clone().requires_grad_(), lp = e.student(z);
  at::Tensor expected = at::zeros({7});
  for (int64_t id = 0; id < 7; ++id) {
    PolicyInputs in;
    in.policy_logps = lp.narrow(0, id, 1);
    in.sequence_of_row = ids({0});
    in.token_advantages = distillation_advantages(in.policy_logps, e.teacher.narrow(0, id, 1));
    in.num_sequences = 1;
    EXPECT_FALSE(in.token_advantages.requires_grad());
    z.mutable_grad() = at::Tensor();
    policy_loss(in, {}).loss_sum.backward({}, /*retain_graph=*/true);
    expected += z.grad() * lp[id].exp().item<float>();
  }
  EXPECT_LT(relative_difference(expected, e.reverse_kl_gradient()), 1e-5);
}

// The trap: differentiated as a loss, k1's gradient is the same for every teacher and vanishes in
// expectation.
TEST(OnPolicyDistillation, DirectK1HasAGradientWithoutTeacherAndIsRefused) {
  const Enumerated e, other;
  const auto direct = [&](const at::Tensor& teacher) {
    const at::Tensor z = e.logits.clone().requires_grad_(), lp = e.student(z);
    (lp.detach().exp() * (lp - teacher)).sum().backward();
    return z.grad();
  };
  EXPECT_TRUE(at::equal(direct(e.teacher), direct(other.teacher)));
  EXPECT_LT(direct(e.teacher).norm().item<double>(), 1e-5);
  EXPECT_GT(relative_difference(direct(e.teacher), e.reverse_kl_gradient()), 0.9);
  EXPECT_THROW(require_policy_gradient(SampledKl::kK1, false), Error);
  EXPECT_NO_THROW(require_policy_gradient(SampledKl::kK1, true));
  EXPECT_NO_THROW(require_policy_gradient(SampledKl::kK3, false));
}

// ---- advantages ----

// The mean of three times 0.1 is 0.1, although their sum is rounded.
TEST(Advantages, EqualRewardsHaveNone) {
  const at::Tensor rewards = at::full({3}, 0.1, at::kDouble);
  ASSERT_NE((0.1 + 0.1 + 0.1) / 3, 0.1);
  for (const ScaleRewards scale : {ScaleRewards::kGroup, ScaleRewards::kBatch, ScaleRewards::kNone})
    EXPECT_EQ(group_advantages(rewards, 3, scale).advantages.abs().max().item<float>(), 0);
  EXPECT_EQ(rloo_advantages(rewards, 3).advantages.abs().max().item<float>(), 0);
}

TEST(Advantages, UnscorableSamplesAreLeftOutAndCounted) {
  const at::Tensor rewards = vector({1, NAN, 3, NAN, NAN, NAN, 5, 5, NAN, 2, NAN, NAN});
  const Advantages got = group_advantages(rewards, 3, ScaleRewards::kGroup);
  EXPECT_EQ(got.num_unscorable, 7);
  EXPECT_EQ(got.num_unscorable_groups, 1);
  const double d = std::sqrt(2.0) + 1e-4;
  EXPECT_LT(relative_difference(got.advantages.narrow(0, 0, 3),
                                vector({static_cast<float>(-1 / d), 0, static_cast<float>(1 / d)})),
            1e-6);
  // no score, equal ones, a single one
  EXPECT_EQ(got.advantages.narrow(0, 3, 9).abs().sum().item<double>(), 0);
  EXPECT_NEAR(got.frac_reward_zero_std, 3.0 / 5, 1e-12);
  EXPECT_NEAR(got.reward_mean, 3.2, 1e-6);
  // As reward 0, which TRL took it for before 1.16, it would be another number.
  const Advantages zeros = group_advantages(at::nan_to_num(rewards, 0.0), 3, ScaleRewards::kGroup);
  EXPECT_GT(relative_difference(zeros.advantages, got.advantages), 0.1);
  EXPECT_EQ(
      group_advantages(vector({NAN, NAN, 1, 2}), 2, ScaleRewards::kBatch).num_unscorable_groups, 1);
  const Advantages none = group_advantages(vector({NAN, NAN}), 2, ScaleRewards::kGroup);
  EXPECT_EQ(none.advantages.abs().sum().item<double>(), 0);
  EXPECT_EQ(none.frac_reward_zero_std, 0);
}

// GDPO, by TRL 1.16's steps: each objective against its group, their weighted sum against the
// batch.
TEST(Advantages, ObjectivesAreComparedEachByItself) {
  const double none = NAN;
  const at::Tensor objectives = at::tensor({1.0,  5.0, 0.0, 5.0, 0.5,  5.0,  0.0,  5.0,  // alike
                                            10.0, 1.0, 0.0, 3.0, none, 2.0,  10.0, none,
                                            2.0,  0.0, 3.0, 1.0, none, none, 2.0,  7.0},
                                           at::kDouble)
                                    .reshape({12, 2});
  const std::vector<double> weights{1, 0.25};
  const at::Tensor weight = at::tensor(weights, at::kDouble);
  at::Tensor rewards = (objectives.nan_to_num(0.0) * weight).sum(1);
  rewards[10] = NAN;

  // What is not a number is left out of every mean.
  const auto mean = [](const at::Tensor& x, int64_t dim) {
    return x.nan_to_num(0.0).sum(dim, true) / x.isnan().logical_not().sum(dim, true);
  };
  const auto deviation = [&](const at::Tensor& x, int64_t dim) {
    const at::Tensor count = x.isnan().logical_not().sum(dim, true);
    return ((x - mean(x, dim)).square().nan_to_num(0.0).sum(dim, true) / (count - 1)).sqrt();
  };
  const at::Tensor grouped = objectives.reshape({3, 4, 2});
  at::Tensor sums =
      (((grouped - mean(grouped, 1)) / (deviation(grouped, 1) + 1e-4)).reshape({12, 2}) * weight)
          .nan_to_num(0.0)
          .sum(1);
  sums[10] = NAN;
  const at::Tensor expected =
      ((sums - mean(sums, 0)) / (deviation(sums, 0) + 1e-4)).nan_to_num(0.0);

  const Advantages got = decoupled_advantages(rewards, objectives, weights, 4);
  EXPECT_LT(relative_difference(got.advantages, expected), 1e-6);
  EXPECT_EQ(got.num_unscorable, 1);
  EXPECT_NEAR(got.reward_mean, mean(rewards, 0).item<double>(), 1e-12);
  EXPECT_EQ(got.frac_reward_zero_std, 0);
  const Advantages summed = group_advantages(rewards, 4, ScaleRewards::kGroup);
  EXPECT_GT(relative_difference(summed.advantages, expected), 0.1) << "or the test shows nothing";

  // Two objectives whose sum is the same in a group have a signal each; none differs, no signal.
  const at::Tensor opposite = at::tensor({0.0, 1.0, 1.0, 0.0, 4.0, 4.0, 4.0, 4.0}, at::kDouble);
  const Advantages apart = decoupled_advantages(at::tensor({1.0, 1.0, 8.0, 8.0}, at::kDouble),
                                                opposite.reshape({4, 2}), {3, 1}, 2);
  EXPECT_LT(apart.advantages[0].item<float>(), -0.5);
  EXPECT_EQ(apart.frac_reward_zero_std, 0.5);
  expect_refused("objectives must be [S, K]",
                 [&] { decoupled_advantages(rewards, objectives, {1}, 4); });
}

TEST(Advantages, RlooComparesWithTheOthers) {
  const Advantages got = rloo_advantages(vector({1, 2, 6, NAN, 4, NAN}), 3);
  EXPECT_LT(relative_difference(got.advantages, vector({1 - 4.0f, 2 - 3.5f, 6 - 1.5f, 0, 0, 0})),
            1e-6);
}

TEST(Advantages, ReinforcePlusPlusNormalisesOverTheBatch) {
  const at::Tensor rewards = vector({1, 2, 6, 3, 4, 0.5f});
  const at::Tensor plain = (rewards - rewards.mean()) / (rewards.std() + 1e-4);
  EXPECT_LT(relative_difference(reinforce_plus_plus_advantages(rewards, 3).advantages, plain),
            1e-6);
  const at::Tensor centred =
      (rewards.reshape({2, 3}) - rewards.reshape({2, 3}).mean(1, true)).flatten();
  EXPECT_LT(relative_difference(reinforce_plus_plus_advantages(rewards, 3, true).advantages,
                                centred / (centred.std() + 1e-4)),
            1e-6);
}

// ---- refusals ----

TEST(PolicyRefusals, Options) {
  expect_refused("epsilon", [] { PolicyOptions{.epsilon = 0}.validate(); });
  expect_refused("epsilon", [] { PolicyOptions{.epsilon = 1.5}.validate(); });
  expect_refused("epsilon_high", [] { PolicyOptions{.epsilon_high = -0.1}.validate(); });
  expect_refused("beta", [] { PolicyOptions{.beta = -1}.validate(); });
  expect_refused("no effect", [] { PolicyOptions{.importance_sampling_cap = 2}.validate(); });
  expect_refused("importance_sampling_cap", [] {
    PolicyOptions{.sampling_correction = SamplingCorrection::kTokenMask,
                  .importance_sampling_cap = 0}
        .validate();
  });
  expect_refused("max_completion_tokens",
                 [] { policy_divisor(PolicyLossType::kDrGrpo, {.sequences = 1}); });
  expect_refused("negative", [] { policy_divisor(PolicyLossType::kGrpo, {.sequences = -1}); });
}

TEST(PolicyRefusals, Inputs) {
  const auto refuse = [](const std::string& part, const std::function<void(PolicyInputs&)>& change,
                         const PolicyOptions& options = {}) {
    PolicyInputs in = example();
    change(in);
    expect_refused(part, [&] { policy_loss(in, options); });
  };
  refuse("reference_logps is missing", [](PolicyInputs&) {}, {.beta = 0.1});
  refuse("reference_logps would not be used",
         [](PolicyInputs& in) { in.reference_logps = in.old_logps; });
  refuse("generator_logps is missing", [](PolicyInputs&) {},
         {.sampling_correction = SamplingCorrection::kTokenMask});
  refuse("generator_logps would not be used",
         [](PolicyInputs& in) { in.generator_logps = in.old_logps; });
  refuse("either advantages", [](PolicyInputs& in) { in.token_advantages = in.old_logps; });
  refuse("either advantages", [](PolicyInputs& in) { in.advantages = at::Tensor(); });
  refuse("advantages must be a vector of 4", [](PolicyInputs& in) { in.advantages = vector({1}); });
  refuse("row=3", [](PolicyInputs& in) { in.sequence_of_row[3] = 4; });
  refuse("old_logps must be",
         [](PolicyInputs& in) { in.old_logps = in.old_logps.to(at::kDouble); });
  refuse("sequence_of_row must be",
         [](PolicyInputs& in) { in.sequence_of_row = in.sequence_of_row.to(at::kInt); });
}

TEST(AdvantageRefusals, Rewards) {
  expect_refused("whole groups", [] {
    group_advantages(vector({1, 2, 3}), 2, ScaleRewards::kGroup);
  });
  expect_refused("whole groups", [] { rloo_advantages(vector({1, 2}), 0); });
  expect_refused("sample=1", [] {
    group_advantages(vector({1, INFINITY}), 2, ScaleRewards::kNone);
  });
  expect_refused("rewards must be", [] { reinforce_plus_plus_advantages(ids({1, 2}), 2); });
}

}  // namespace
}  // namespace retort::losses::policy
