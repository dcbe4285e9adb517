#include "recipes/run/loop/divergence_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace retort::recipes {
namespace {

constexpr auto kWindow = static_cast<int64_t>(DivergenceWatch::kWindow);

// The first step after which something is wrong, and the words; 0: none of `steps`.
struct Found {
  int64_t step = 0;
  std::string what;
};
Found watch(int64_t steps, const std::function<DivergenceWatch::Step(int64_t)>& at,
            bool by_loss = true) {
  DivergenceWatch watch(by_loss);
  for (int64_t step = 1; step <= steps; ++step) {
    DivergenceWatch::Step now = at(step);
    now.number = step;
    if (const std::string what = watch.see(now); !what.empty()) return {step, what};
  }
  return {};
}

DivergenceWatch::Step with_loss(double loss) {
  return {.loss = loss, .grad_norm = 1, .learning_rate = 1e-3};
}

// Noise between -1 and 1.
double noise(int64_t step) { return std::sin(static_cast<double>(step * step)); }

// From `first` down to `last`, with noise of a share of it.
double falling(int64_t step, double first, double last, double share) {
  const double way = 1.0 / std::sqrt(1.0 + static_cast<double>(step - 1) / 20);
  return (last + (first - last) * way) * (1 + share * noise(step));
}

TEST(DivergenceWatch, IsQuietWhereALossFallsOrStays) {
  const auto quiet = [](double first, double last, double share) {
    const Found found =
        watch(2000, [&](int64_t step) { return with_loss(falling(step, first, last, share)); });
    EXPECT_EQ(found.step, 0) << first << " to " << last << ": " << found.what;
  };
  quiet(10.4, 2.0, 0.1);  // a language model from nothing
  quiet(1.4, 1.1, 0.4);   // one that is tuned, rows of few tokens
  quiet(0.693, 0.01, 1);  // pairs
  quiet(1e-3, 1e-4, 1);   // a student that begins as its teacher
  quiet(25, 2, 0.5);      // squares
  quiet(1.2, 1.2, 0.5);   // nothing is learned
}

TEST(DivergenceWatch, ASpikeOrHarderRowsAreNoDivergence) {
  EXPECT_EQ(watch(500, [](int64_t step) { return with_loss(step == 250 ? 40.0 : 2.0); }).step, 0);
  // A few steps beyond all bounds.
  EXPECT_EQ(watch(500, [](int64_t step) { return with_loss(step / 8 == 30 ? 9.0 : 2.0); }).step, 0);
  EXPECT_EQ(watch(500, [](int64_t step) { return with_loss(step < 250 ? 0.8 : 1.5); }).step, 0);
}

// 2.1 at its lowest, and from step 200 on what guessing gives.
TEST(DivergenceWatch, TellsOfALossThatHasLeft) {
  const auto loss = [](int64_t step) {
    return with_loss(step < 200 ? falling(step, 7.6, 1.5, 0.05) : 7.6);
  };
  const Found found = watch(300, loss);
  EXPECT_GT(found.step, 200 + kWindow);
  EXPECT_LE(found.step, 200 + 2 * kWindow);
  EXPECT_TRUE(
      found.what.starts_with("the loss has diverged: its median over 20 steps has been above "))
      << found.what;
  EXPECT_EQ(watch(300, loss, /*by_loss=*/false).step, 0);
}

// Before there is any median to compare with.
TEST(DivergenceWatch, TellsOfARunThatExplodesAtOnce) {
  const Found found =
      watch(300, [](int64_t step) { return with_loss(step == 1 ? 7.6 : 700'000.0); });
  EXPECT_EQ(found.step, 2 * kWindow - 1);
}

TEST(DivergenceWatch, IsOverWhenTheLossComesBack) {
  DivergenceWatch watch(/*by_loss=*/true);
  std::string what;
  const auto see = [&](int64_t from, int64_t to, double loss) {
    for (int64_t step = from; step < to; ++step) {
      DivergenceWatch::Step now = with_loss(loss);
      now.number = step;
      what = watch.see(now);
    }
  };
  see(1, 100, 2);
  see(100, 150, 9);
  EXPECT_FALSE(what.empty());
  see(150, 170, 2);
  EXPECT_EQ(what, "");
}

TEST(DivergenceWatch, TellsOfAGradientThatIsGone) {
  const auto dies_at_10 = [](int64_t step) {
    return DivergenceWatch::Step{
        .loss = -0.1, .grad_norm = step < 10 ? 0.5 : 0.0, .learning_rate = 1e-3};
  };
  for (const bool by_loss : {true, false}) {
    const Found found = watch(100, dies_at_10, by_loss);
    EXPECT_EQ(found.step, 10 + kWindow - 1);
    EXPECT_EQ(found.what, "nothing is learned any more: the gradient has been 0 since step 10");
  }

  // One that is small, one that comes back, and a rate of 0.
  const auto of = [](double norm, double rate) {
    return DivergenceWatch::Step{.loss = 1, .grad_norm = norm, .learning_rate = rate};
  };
  EXPECT_EQ(watch(100, [&](int64_t) { return of(1e-9, 1e-3); }).step, 0);
  EXPECT_EQ(watch(100, [&](int64_t step) { return of(step % 20 == 0 ? 1 : 0, 1e-3); }).step, 0);
  EXPECT_EQ(watch(100, [&](int64_t) { return of(0, 0); }).step, 0);
}

TEST(DivergenceWatch, TellsOfStepsThatAreSkipped) {
  const auto skips = [](int64_t every) {
    return [every](int64_t step) {
      return DivergenceWatch::Step{
          .loss = 1, .grad_norm = 1, .learning_rate = 1e-3, .skipped = step % every == 0};
    };
  };
  EXPECT_EQ(watch(100, skips(3)).step, 0);
  const Found found = watch(100, skips(2));
  EXPECT_EQ(found.step, kWindow);
  EXPECT_EQ(found.what,
            "loss or gradient are not finite: 10 of the last 20 steps were skipped, as of step 20");
}

}  // namespace
}  // namespace retort::recipes
