// The sums of a step: added over ranks, and divided into metrics.
#include "recipes/run/loop/metric_sums.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "parallel/world.h"

namespace retort::recipes {
namespace {

using Named = std::vector<std::pair<std::string, double>>;

Named doubles_of(const MetricsRow& row) {
  Named doubles;
  for (const auto& [name, value] : row.values)
    doubles.emplace_back(name, std::get<double>(value));
  return doubles;
}

TEST(AddMeans, DividesByTheDivisorOrByAMetricsOwnCountInTheTablesOrder) {
  const StepSums sums{.values = {6, 5, 4}};
  const std::array<MeanMetric, 3> metrics{{{"b", 1}, {"logits/c", 0, 2}, {"a", 0}}};
  MetricsRow row;
  row.add("loss", 1.0);
  add_means(metrics, sums, 2, row);
  EXPECT_EQ(doubles_of(row), (Named{{"loss", 1.0}, {"b", 2.5}, {"logits/c", 1.5}, {"a", 3.0}}));
}

TEST(AddMeans, BeginsNamesWithThePrefix) {
  const std::array<MeanMetric, 1> metrics{{{"rewards/chosen", 0}}};
  MetricsRow row;
  add_means(metrics, {.values = {3}}, 2, row, "eval_");
  EXPECT_EQ(doubles_of(row), (Named{{"eval_rewards/chosen", 1.5}}));
}

// Without rows of a label there is nothing to say of them; a recipe that counted nothing shows it.
TEST(AddMeans, LeavesOutAMetricWhoseOwnCountIsZero) {
  const std::array<MeanMetric, 2> metrics{{{"of_none", 0, 1}, {"mean", 0}}};
  MetricsRow row;
  add_means(metrics, {.values = {3, 0}}, 0, row);
  ASSERT_EQ(row.values.size(), 1u);
  EXPECT_EQ(row.values[0].first, "mean");
}

TEST(AllReduce, LeavesTheSumsOfARankAlone) {
  parallel::World world({.role = "student", .layout = {}});
  StepSums sums{.count = 1, .loss = 2, .num_tokens = 3, .num_truncated = 6, .values = {4, 5}};
  all_reduce(sums, world.dp_pp());
  EXPECT_EQ(sums.count, 1);
  EXPECT_EQ(sums.loss, 2);
  EXPECT_EQ(sums.num_tokens, 3);
  EXPECT_EQ(sums.num_truncated, 6);
  EXPECT_EQ(sums.values, (std::vector<double>{4, 5}));
}

TEST(AllReduce, AddsEveryNumberOverTheRanks) {
  constexpr size_t kRanks = 3;
  parallel::StoreServer store("127.0.0.1");
  std::vector<StepSums> sums(kRanks);
  std::vector<std::unique_ptr<parallel::World>> worlds(kRanks);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      parallel::World::Options options{.role = "student", .layout = {.dp = kRanks}};
      options.rank = static_cast<int64_t>(rank);
      options.store_port = store.port();
      options.store_prefix = "run/student/0/";
      worlds[rank] = std::make_unique<parallel::World>(std::move(options));
      sums[rank] = {.count = 1,
                    .loss = 0.5,
                    .num_tokens = 10,
                    .num_truncated = 2,
                    .values = {static_cast<double>(rank), 0.25}};
      all_reduce(sums[rank], worlds[rank]->dp_pp());
    });
  for (std::thread& rank : ranks)
    rank.join();

  for (const StepSums& global : sums) {
    EXPECT_EQ(global.count, 3);
    EXPECT_EQ(global.loss, 1.5);
    EXPECT_EQ(global.num_tokens, 30);
    EXPECT_EQ(global.num_truncated, 6);
    EXPECT_EQ(global.values, (std::vector<double>{3, 0.75}));
  }
}

}  // namespace
}  // namespace retort::recipes
