// The losses over judged completions by themselves: gradients against finite differences, extremes,
// batches in parts, refusals.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/error.h"
#include "recipes/losses/kto.h"
#include "tests/support/thrown.h"

namespace retort::losses::kto {
namespace {

using test::expect_refused;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor vector(std::vector<float> values) { return at::tensor(values, at::kFloat); }

std::vector<KtoLossOptions> all_losses() {
  std::vector<KtoLossOptions> losses;
  for (const auto& [name, loss] : EnumNames<KtoLoss>::values)
    losses.push_back(
        {.loss_type = loss, .beta = 0.5, .desirable_weight = 1.25, .undesirable_weight = 0.75});
  return losses;
}

KtoInputs example(const KtoLossOptions& options) {
  return {.policy = vector({-12.5f, -3.25f, -40, -7}),
          .reference = vector({-13, -3, -36, -8}),
          .desirable = {true, false, false, true},
          .kl = needs_kl(options) ? 0.75 : 0.0};
}

struct Gradient {
  double value;
  at::Tensor of_policy;
};
Gradient evaluate(KtoInputs in, const KtoLossOptions& options) {
  in.policy = in.policy.clone().requires_grad_();
  const KtoResult result = kto_loss(in, options);
  result.loss_sum.backward();
  return {result.loss_sum.item<double>(), in.policy.grad()};
}

TEST(KtoLoss, GradientsAreThoseOfTheValue) {
  for (const KtoLossOptions& options : all_losses()) {
    SCOPED_TRACE(enum_name(options.loss_type));
    const KtoInputs in = example(options);
    const Gradient exact = evaluate(in, options);
    for (int64_t i = 0; i < 4; ++i) {
      const float step = 1.0f / 64;
      const auto at_offset = [&](float by) {
        KtoInputs moved = in;
        moved.policy = in.policy.clone();
        moved.policy[i] += by;
        return evaluate(moved, options).value;
      };
      const double slope = (at_offset(step) - at_offset(-step)) / (2 * step);
      EXPECT_NEAR(exact.of_policy[i].item<double>(), slope, 1e-4);
      EXPECT_EQ(slope < 0, in.desirable[static_cast<size_t>(i)]) << i;
    }
  }
}

TEST(KtoLoss, EqualModelsCostHalfTheWeights) {
  for (const KtoLossOptions& options : all_losses()) {
    KtoInputs in = example(options);
    in.reference = in.policy;
    in.kl = 0;
    const KtoResult result = kto_loss(in, options);
    EXPECT_NEAR(result.loss_sum.item<double>(), 1.25 + 0.75, 1e-6);
    EXPECT_EQ(result.chosen.count, 2);
    EXPECT_EQ(result.rejected.count, 2);
    EXPECT_EQ(result.chosen.rewards_sum, 0);
    EXPECT_EQ(result.rejected.rewards_sum, 0);
  }
}

TEST(KtoLoss, FiniteAtExtremes) {
  const float huge = 1e6f;
  for (const KtoLossOptions& options : all_losses())
    for (const float policy : {-huge, 0.0f, -1e-38f, -3.0f})
      for (const float reference : {-huge, 0.0f, -2.0f}) {
        const Gradient got = evaluate({.policy = vector({policy, policy}),
                                       .reference = vector({reference, reference}),
                                       .desirable = {true, false},
                                       .kl = needs_kl(options) ? 1e6 : 0},
                                      options);
        EXPECT_TRUE(std::isfinite(got.value)) << policy << " " << reference;
        EXPECT_TRUE(got.of_policy.isfinite().all().item<bool>()) << policy << " " << reference;
      }
}

TEST(KtoLoss, NanInIsNanOut) {
  for (const KtoLossOptions& options : all_losses()) {
    KtoInputs in = example(options);
    in.policy[2] = kNan;
    EXPECT_TRUE(std::isnan(evaluate(in, options).value));
  }
  const KtoLossOptions kto;
  KtoInputs in = example(kto);
  in.kl = kl_estimate(kNan, 4);
  EXPECT_TRUE(std::isnan(in.kl));
  EXPECT_TRUE(std::isnan(evaluate(in, kto).value));
}

TEST(KtoLoss, TheEstimateIsAMeanThatIsNotNegative) {
  EXPECT_EQ(kl_estimate(6, 4), 1.5);
  EXPECT_EQ(kl_estimate(0, 4), 0);
  EXPECT_EQ(kl_estimate(-6, 4), 0);
}

TEST(KtoLoss, PartsOfABatchAddUp) {
  for (const KtoLossOptions& options : all_losses()) {
    const KtoInputs whole = example(options);
    const auto part = [&](int64_t begin, int64_t size) {
      const auto first = whole.desirable.begin() + begin;
      return kto_loss({.policy = whole.policy.narrow(0, begin, size),
                       .reference = whole.reference.narrow(0, begin, size),
                       .desirable = std::vector<bool>(first, first + size),
                       .kl = whole.kl},
                      options);
    };
    const KtoResult all = kto_loss(whole, options);
    const KtoResult first = part(0, 1);
    const KtoResult rest = part(1, 3);
    const KtoResult none = part(0, 0);
    EXPECT_NEAR(all.loss_sum.item<double>(),
                (first.loss_sum + rest.loss_sum + none.loss_sum).item<double>(), 1e-6);
    EXPECT_EQ(all.count, first.count + rest.count + none.count);
    EXPECT_EQ(all.chosen.count, first.chosen.count + rest.chosen.count);
    EXPECT_NEAR(all.chosen.rewards_sum, first.chosen.rewards_sum + rest.chosen.rewards_sum, 1e-9);
    EXPECT_NEAR(all.rejected.logps_sum, first.rejected.logps_sum + rest.rejected.logps_sum, 1e-9);
  }
}

TEST(KtoLoss, NoRowsStillReachThePolicy) {
  const at::Tensor policy = at::empty({0}, at::kFloat).requires_grad_();
  const KtoResult result =
      kto_loss({.policy = policy, .reference = at::empty({0}, at::kFloat), .desirable = {}}, {});
  result.loss_sum.backward();
  EXPECT_EQ(result.loss_sum.item<double>(), 0);
  EXPECT_EQ(policy.grad().size(0), 0);
}

TEST(KtoRefusals, Options) {
  for (const double value : {0.0, -1.0, kNan, std::numeric_limits<double>::infinity()}) {
    expect_refused("beta must be positive", [&] { KtoLossOptions{.beta = value}.validate(); });
    expect_refused("desirable_weight must be positive",
                   [&] { KtoLossOptions{.desirable_weight = value}.validate(); });
    expect_refused("undesirable_weight must be positive",
                   [&] { KtoLossOptions{.undesirable_weight = value}.validate(); });
  }
  EXPECT_NO_THROW(KtoLossOptions{}.validate());
}

TEST(KtoRefusals, Inputs) {
  const KtoLossOptions kto;
  const KtoLossOptions apo{.loss_type = KtoLoss::kApoZeroUnpaired};
  KtoInputs in = example(kto);
  expect_refused("kl has no effect", [&] { kto_loss(in, apo); });
  in.kl = -0.5;
  expect_refused("kl is negative", [&] { kto_loss(in, kto); });
  in = example(kto);
  in.reference = at::Tensor();
  expect_refused("reference is missing", [&] { kto_loss(in, kto); });
  in = example(kto);
  in.desirable.pop_back();
  expect_refused("policy must be a vector of 3", [&] { kto_loss(in, kto); });
  in = example(kto);
  in.policy = in.policy.to(at::kDouble);
  expect_refused("policy must be a vector", [&] { kto_loss(in, kto); });
}

}  // namespace
}  // namespace retort::losses::kto
