#include "recipes/run/checkpoints/best_model.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// '+' for each value that is the best so far, 'x' where the patience is over, else '-'.
std::string course(const BestModelOptions& options, const std::vector<double>& values,
                   BestModel best = {}) {
  std::string seen;
  int64_t step = best.step;
  for (const double value : values) {
    const bool is_best = see_evaluation(options, step += 10, value, best);
    seen += is_best ? '+' : is_patience_over(options, best) ? 'x' : '-';
  }
  return seen;
}

TEST(BestModel, IsLeastOrGreatest) {
  const std::vector<double> values{3, 2, 2, 2.5, 1, 4, 4};
  EXPECT_EQ(course({.metric = "eval_loss"}, values), "++--+--");
  EXPECT_EQ(course({.metric = "eval_reward", .greater_is_better = true}, values), "+----+-");
}

TEST(BestModel, PatienceCountsEvaluationsInARow) {
  const BestModelOptions two{.metric = "eval_loss", .patience = 2};
  EXPECT_EQ(course(two, {3, 4, 2, 4, 2}), "+-+-x");
  EXPECT_EQ(course(two, {3, 4, 4, 4}), "+-xx");
  EXPECT_EQ(course({.metric = "eval_loss"}, {3, 4, 4, 4, 4, 4}), "+-----") << "0: never";
}

TEST(BestModel, WhatIsNoNumberIsNotBetter) {
  const BestModelOptions two{.metric = "eval_loss", .patience = 2};
  EXPECT_EQ(course(two, {kNan, 2, kNan, -kInfinity}), "-+-x");
  EXPECT_EQ(course(two, {kNan, kNan}), "-x");
}

// As a run does that is resumed between any two evaluations.
TEST(BestModel, GoesOnFromWhatIsKnown) {
  const BestModelOptions options{.metric = "eval_loss", .patience = 3};
  const std::vector<double> values{3, 1, 2, 2, 1, 0.5};
  const std::string whole = course(options, values);
  for (size_t cut = 0; cut <= values.size(); ++cut) {
    BestModel best;
    int64_t step = 0;
    for (size_t i = 0; i < cut; ++i)
      see_evaluation(options, step += 10, values[i], best);
    const std::vector<double> rest(values.begin() + static_cast<int64_t>(cut), values.end());
    EXPECT_EQ(course(options, rest, best), whole.substr(cut)) << cut;
  }
}

TEST(BestModel, NamesWhatIsWrong) {
  MetricsRow row{.step = 5, .values = {}};
  row.add("eval_loss", 0.5).add("eval_num_tokens", int64_t{7});
  EXPECT_EQ(metric_of(row, "eval_loss"), 0.5);
  EXPECT_EQ(metric_of(row, "eval_num_tokens"), 7);
  test::expect_refused("the evaluation has no eval_reward; it has eval_loss, eval_num_tokens",
                       [&] { metric_of(row, "eval_reward"); });

  const BestModel best{.metric = "eval_loss", .step = 5, .value = 1};
  check_same_metric({.metric = "eval_loss"}, best);
  check_same_metric({}, best);
  check_same_metric({.metric = "eval_reward"}, {});
  test::expect_refused("must keep train.metric_for_best_model",
                       [&] { check_same_metric({.metric = "eval_reward"}, best); });
  test::expect_refused("by the smallest eval_loss so far", [&] {
    check_same_metric({.metric = "eval_loss", .greater_is_better = true}, best);
  });
}

TEST(BestModel, SaysWhyTheRunEnds) {
  EXPECT_EQ(
      why_stopped_early({.metric = "eval_loss", .step = 40, .value = 1.25, .evaluations_since = 3}),
      "eval_loss has not improved in 3 evaluations (train.early_stopping_patience); the best "
      "is 1.25, of step 40");
}

}  // namespace
}  // namespace retort::recipes
