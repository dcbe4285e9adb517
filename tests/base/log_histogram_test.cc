#include "base/log_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace retort {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr double kError = 0.0906;  // 2^(1/8) - 1, rounded up

TEST(LogHistogram, EveryDurationIsWithinItsError) {
  for (double ns = 1000; ns < 4e12; ns *= 1.01) {
    LogHistogram one;
    one.add(nanoseconds(static_cast<int64_t>(ns)));
    EXPECT_NEAR(one.quantile(0.5), ns * 1e-9, kError * ns * 1e-9) << ns << " ns";
  }
}

TEST(LogHistogram, QuantilesAreThoseOfTheSample) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> seconds(-6, 2);
  std::vector<double> sample;
  LogHistogram histogram;
  for (int i = 0; i < 10'000; ++i) {
    sample.push_back(std::max(seconds(random), 2e-6));
    histogram.add(nanoseconds(std::llround(sample.back() * 1e9)));
  }
  std::sort(sample.begin(), sample.end());
  EXPECT_EQ(histogram.count(), 10'000u);
  for (const double q : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    const double exact = sample[static_cast<size_t>(q * 10'000) - 1];
    EXPECT_NEAR(histogram.quantile(q), exact, kError * exact) << q;
  }
}

TEST(LogHistogram, WhatIsOutOfRangeIsCountedAtItsEnds) {
  LogHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), 0) << "nothing was counted";
  histogram.add(nanoseconds(-5));
  histogram.add(nanoseconds(0));
  histogram.add(nanoseconds(999));
  EXPECT_EQ(histogram.quantile(1), 0);
  histogram.add(hours(30));
  EXPECT_EQ(histogram.quantile(0.75), 0);
  EXPECT_NEAR(histogram.quantile(1), 4294.97, 0.01);
}

TEST(LogHistogram, AddsAndSubtracts) {
  LogHistogram before;
  before.add(microseconds(10));
  LogHistogram after = before;
  after.add(milliseconds(10));
  const LogHistogram later = after.since(before);
  EXPECT_EQ(later.count(), 1u);
  EXPECT_NEAR(later.quantile(0), 0.01, kError * 0.01);
  LogHistogram both = before;
  both += later;
  EXPECT_EQ(both.count(), 2u);
  EXPECT_NEAR(both.quantile(0.5), 1e-5, kError * 1e-5);
  EXPECT_NEAR(both.quantile(0.51), 0.01, kError * 0.01);
}

}  // namespace
}  // namespace retort
