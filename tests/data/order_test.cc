#include "recipes/data/detail/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace retort::data::detail {
namespace {

std::vector<int64_t> rows_of(const EpochOrder& order) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < order.size(); ++i)
    rows.push_back(order.row(i));
  return rows;
}
std::map<int64_t, int64_t> times_of(const EpochOrder& order) {
  std::map<int64_t, int64_t> times;
  for (const int64_t row : rows_of(order))
    ++times[row];
  return times;
}

TEST(EpochOrder, EqualWeightsShowEveryRowOnce) {
  for (const double weight : {1.0, 3.0, 0.25})
    for (const bool shuffle : {false, true}) {
      const EpochOrder order({{30, weight}, {1, weight}, {70, weight}}, 42, 3, shuffle);
      auto rows = rows_of(order);
      EXPECT_EQ(std::is_sorted(rows.begin(), rows.end()), !shuffle);
      std::sort(rows.begin(), rows.end());
      ASSERT_EQ(rows.size(), 101u);
      for (int64_t i = 0; i < 101; ++i)
        EXPECT_EQ(rows[static_cast<size_t>(i)], i);
    }
}

TEST(EpochOrder, SeedAndEpochChooseTheShuffle) {
  const std::vector<SourceShape> sources{{200, 1}};
  const auto base = rows_of(EpochOrder(sources, 42, 0, true));
  EXPECT_EQ(base, rows_of(EpochOrder(sources, 42, 0, true)));
  EXPECT_NE(base, rows_of(EpochOrder(sources, 42, 1, true)));
  EXPECT_NE(base, rows_of(EpochOrder(sources, 43, 0, true)));
}

TEST(EpochOrder, WholeWeightsRepeatRows) {
  const auto times = times_of(EpochOrder({{10, 1}, {5, 2}, {4, 3}}, 1, 0, true));
  ASSERT_EQ(times.size(), 19u);
  for (const auto& [row, count] : times)
    EXPECT_EQ(count, row < 10 ? 1 : row < 15 ? 2 : 3) << row;
}

TEST(EpochOrder, WeightsAreRelative) {
  EXPECT_EQ(rows_of(EpochOrder({{10, 1}, {5, 2}}, 1, 0, true)),
            rows_of(EpochOrder({{10, 0.5}, {5, 1}}, 1, 0, true)));
}

TEST(EpochOrder, FractionsAreDrawnPerRowAndEpoch) {
  const std::vector<SourceShape> sources{{1000, 1}, {4000, 1.25}};
  const auto first = times_of(EpochOrder(sources, 7, 0, true)),
             second = times_of(EpochOrder(sources, 7, 1, true));
  int64_t twice = 0, twice_again = 0;
  for (const auto& [row, count] : first) {
    EXPECT_GE(count, 1);
    EXPECT_LE(count, row < 1000 ? 1 : 2);
    twice += count == 2;
    twice_again += count == 2 && second.at(row) == 2;
  }
  EXPECT_EQ(first.size(), 5000u);
  // binomial(4000, 1/4): 4 standard deviations
  EXPECT_NEAR(static_cast<double>(twice), 1000, 110);
  EXPECT_NEAR(static_cast<double>(twice_again), 250, 62);  // independent between epochs
  EXPECT_EQ(times_of(EpochOrder(sources, 7, 0, false)), first)
      << "the draws do not depend on the shuffle";
}

TEST(EpochOrder, UnshuffledIsFileOrder) {
  EXPECT_EQ(rows_of(EpochOrder({{2, 1}, {2, 2}}, 1, 0, false)),
            (std::vector<int64_t>{0, 1, 2, 3, 2, 3}));
}

}  // namespace
}  // namespace retort::data::detail
