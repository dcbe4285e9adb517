// The loss of reward models by itself: against the formula, gradients against finite differences,
// extremes, batches in parts, refusals.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "recipes/losses/bradley_terry.h"
#include "tests/support/thrown.h"

namespace retort::losses::bradley_terry {
namespace {

using test::expect_refused;

at::Tensor vector(std::vector<float> values) { return at::tensor(values, at::kFloat); }

BradleyTerryInputs example() {
  return {.chosen = vector({0.5f, -1.25f, 3}),
          .rejected = vector({0.25f, 2, -1.5f}),
          .margin = vector({0.125f, -0.5f, 1})};
}

double formula(const BradleyTerryInputs& in, double center) {
  double sum = 0;
  for (int64_t i = 0; i < in.chosen.numel(); ++i) {
    const double chosen = in.chosen[i].item<double>();
    const double rejected = in.rejected[i].item<double>();
    const double margin = in.margin.defined() ? in.margin[i].item<double>() : 0;
    sum += std::log(1 + std::exp(rejected + margin - chosen));
    sum += center * (chosen + rejected) * (chosen + rejected);
  }
  return sum;
}

TEST(BradleyTerry, IsItsFormula) {
  for (const double center : {0.0, 0.25}) {
    BradleyTerryInputs in = example();
    const auto with = bradley_terry_loss(in, {.center_rewards_coefficient = center});
    EXPECT_NEAR(with.loss_sum.item<double>(), formula(in, center), 1e-6);
    EXPECT_EQ(with.count, 3);
    EXPECT_EQ(with.accuracy_sum, 2);
    EXPECT_DOUBLE_EQ(with.margin_sum, 0.25 - 3.25 + 4.5);
    EXPECT_DOUBLE_EQ(with.chosen_sum, 2.25);
    EXPECT_DOUBLE_EQ(with.rejected_sum, 0.75);
    in.margin = at::Tensor();
    const double without =
        bradley_terry_loss(in, {.center_rewards_coefficient = center}).loss_sum.item<double>();
    EXPECT_NEAR(without, formula(in, center), 1e-6);
    EXPECT_GT(std::abs(without - with.loss_sum.item<double>()), 1e-2) << "or margins do nothing";
  }
}

TEST(BradleyTerry, GradientsAreThoseOfTheValue) {
  const BradleyTerryOptions options{.center_rewards_coefficient = 0.25};
  BradleyTerryInputs in = example();
  in.chosen.requires_grad_();
  in.rejected.requires_grad_();
  (bradley_terry_loss(in, options).loss_sum * 2).backward();
  for (const auto member : {&BradleyTerryInputs::chosen, &BradleyTerryInputs::rejected})
    for (int64_t i = 0; i < 3; ++i) {
      const float step = 1.0f / 64;
      const auto at_offset = [&](float by) {
        BradleyTerryInputs moved = example();
        (moved.*member)[i] += by;
        return formula(moved, 0.25);
      };
      const double slope = (at_offset(step) - at_offset(-step)) / (2 * step);
      EXPECT_NEAR((in.*member).grad()[i].item<double>(), 2 * slope, 2e-4);
    }
}

TEST(BradleyTerry, HoldsAtExtremes) {
  const auto far = bradley_terry_loss(
      {.chosen = vector({1e4f, -1e4f}), .rejected = vector({-1e4f, 1e4f}), .margin = {}}, {});
  EXPECT_DOUBLE_EQ(far.loss_sum.item<double>(), 2e4);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto lost =
      bradley_terry_loss({.chosen = vector({nan}), .rejected = vector({1}), .margin = {}}, {});
  EXPECT_TRUE(std::isnan(lost.loss_sum.item<double>()));
  at::Tensor none = at::empty({0}, at::kFloat).requires_grad_();
  const auto empty = bradley_terry_loss({.chosen = none, .rejected = none, .margin = {}}, {});
  EXPECT_EQ(empty.loss_sum.item<double>(), 0);
  EXPECT_NO_THROW(empty.loss_sum.backward());
}

TEST(BradleyTerry, RefusesWhatCannotBe) {
  BradleyTerryInputs in = example();
  in.rejected = vector({1});
  expect_refused("rejected", [&] { bradley_terry_loss(in, {}); });
  in = example();
  in.margin = vector({1});
  expect_refused("margin", [&] { bradley_terry_loss(in, {}); });
  expect_refused("center_rewards_coefficient",
                 [&] { bradley_terry_loss(example(), {.center_rewards_coefficient = -1}); });
}

}  // namespace
}  // namespace retort::losses::bradley_terry
