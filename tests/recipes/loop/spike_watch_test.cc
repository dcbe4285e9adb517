#include "recipes/run/student/spike_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace retort::recipes {
namespace {

// A loss that falls, with noise of 5 %.
double usual(int64_t step) {
  return 3.0 / std::sqrt(1.0 + static_cast<double>(step) / 50) *
         (1 + 0.05 * std::sin(static_cast<double>(step * step)));
}

TEST(SpikeWatch, IsQuietWhereALossFalls) {
  SpikeWatch watch;
  for (int64_t step = 1; step <= 1000; ++step)
    EXPECT_EQ(watch.see("loss", step, usual(step)), std::nullopt) << step;
}

TEST(SpikeWatch, NamesAJumpAndNotTheStepsAfterIt) {
  SpikeWatch watch;
  for (int64_t step = 1; step <= 100; ++step)
    watch.see("loss", step, usual(step));
  const auto said = watch.see("loss", 101, 4.5);
  ASSERT_TRUE(said);
  EXPECT_TRUE(said->starts_with("loss 4.5 at step 101 is a spike: usual are 1.")) << *said;
  for (int64_t step = 102; step <= 200; ++step)
    EXPECT_EQ(watch.see("loss", step, usual(step)), std::nullopt) << step;
}

TEST(SpikeWatch, TakesANewLevelForUsualAfterAWhile) {
  SpikeWatch watch;
  for (int64_t step = 1; step <= 100; ++step)
    watch.see("loss", step, usual(step));
  size_t told = 0;
  for (int64_t step = 101; step <= 300; ++step)
    told += watch.see("loss", step, 10 + usual(step)).has_value();
  EXPECT_GT(told, 0u);
  EXPECT_LE(told, SpikeWatch::kWindow / 2 + 1);
}

TEST(SpikeWatch, NeedsSomeValuesAndLeavesOutWhatIsNone) {
  SpikeWatch watch;
  EXPECT_EQ(watch.see("loss", 1, 1.0), std::nullopt);
  EXPECT_EQ(watch.see("loss", 2, 1e9), std::nullopt);
  for (int64_t step = 3; step < 40; ++step)
    watch.see("loss", step, 1.0);
  EXPECT_EQ(watch.see("loss", 40, std::numeric_limits<double>::quiet_NaN()), std::nullopt);
  // A curve without noise has none for a change of a few percent.
  EXPECT_EQ(watch.see("loss", 41, 1.05), std::nullopt);
  EXPECT_TRUE(watch.see("loss", 42, 1.2));
}

}  // namespace
}  // namespace retort::recipes
