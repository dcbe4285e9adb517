#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/sizes.h"
#include "tests/support/thrown.h"

namespace retort::parallel {
namespace {

using Groups = std::vector<std::vector<int>>;

// The 16-rank example of Megatron-LM: TP 2, PP 4, DP 2.
constexpr Layout kSixteen{.tp = 2, .pp = 4, .dp = 2};

std::string refusal(const Layout& layout) {
  return test::message_of([&] { layout.validate(); });
}

TEST(Layout, RanksAndCoordinatesAreInverse) {
  const Layout layout{.tp = 3, .pp = 2, .dp = 5};
  EXPECT_EQ(layout.world_size(), 30);
  for (int64_t rank = 0; rank < 30; ++rank)
    EXPECT_EQ(rank_of(layout, coordinate_of(layout, rank)), rank);
  EXPECT_EQ(coordinate_of(layout, 1), (Coordinate{.tp = 1, .dp = 0, .pp = 0}));
  EXPECT_EQ(coordinate_of(layout, 3), (Coordinate{.tp = 0, .dp = 1, .pp = 0}));
  EXPECT_EQ(coordinate_of(layout, 15), (Coordinate{.tp = 0, .dp = 0, .pp = 1}));
  EXPECT_THROW(coordinate_of(layout, 30), Error);
  EXPECT_THROW(coordinate_of(layout, -1), Error);
  EXPECT_THROW(rank_of(layout, {.tp = 3, .dp = 0, .pp = 0}), Error);
}

TEST(RankGroups, TensorParallel) {
  EXPECT_EQ(rank_groups(kSixteen, "tp"),
            (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
}

TEST(RankGroups, PipelineParallel) {
  EXPECT_EQ(rank_groups(kSixteen, "pp"),
            (Groups{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
}

TEST(RankGroups, ModelParallel) {
  const Groups expected{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}};
  EXPECT_EQ(rank_groups(kSixteen, "tp-pp"), expected);
  EXPECT_EQ(rank_groups(kSixteen, "pp-tp"), expected);
}

TEST(RankGroups, DataParallel) {
  EXPECT_EQ(rank_groups(kSixteen, "dp"),
            (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
}

TEST(RankGroups, DataAndPipelineParallel) {
  EXPECT_EQ(rank_groups(kSixteen, "dp-pp"),
            (Groups{{0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5, 7, 9, 11, 13, 15}}));
}

TEST(RankGroups, Embedding) {
  EXPECT_EQ(embedding_groups(kSixteen), (Groups{{0, 12}, {1, 13}, {2, 14}, {3, 15}}));
}

TEST(RankGroups, EmbeddingOfOneStageIsThatStage) {
  EXPECT_EQ(embedding_groups({.tp = 2, .pp = 1, .dp = 2}), (Groups{{0}, {1}, {2}, {3}}));
}

TEST(RankGroups, EveryRankStandsOnceInEachPartition) {
  const Layout layout{.tp = 3, .pp = 4, .dp = 2};
  for (const char* axes : {"tp", "dp", "pp", "tp-dp", "dp-pp", "tp-pp", "tp-dp-pp"}) {
    std::vector<int> seen(24, 0);
    int previous_first = -1;
    for (const auto& group : rank_groups(layout, axes)) {
      EXPECT_GT(group.front(), previous_first) << axes;
      previous_first = group.front();
      EXPECT_TRUE(std::ranges::is_sorted(group)) << axes;
      for (int rank : group)
        ++seen[to_size(rank)];
    }
    EXPECT_EQ(seen, std::vector<int>(24, 1)) << axes;
  }
}

TEST(RankGroups, RefusesUnknownAndRepeatedAxes) {
  for (const char* axes : {"", "ep", "tp-", "tp-tp", "tp dp"})
    EXPECT_THROW(rank_groups(kSixteen, axes), Error) << axes;
}

TEST(Layout, ValidateNamesTheField) {
  EXPECT_NO_THROW(kSixteen.validate());
  EXPECT_NE(refusal({.tp = 0}).find("world.tp is 0"), std::string::npos);
  EXPECT_NE(refusal({.pp = -1}).find("world.pp is -1"), std::string::npos);
  EXPECT_NE(refusal({.dp = 0}).find("world.dp is 0"), std::string::npos);
  EXPECT_NE(refusal({.virtual_pp = 0}).find("world.virtual_pp is 0"), std::string::npos);
  EXPECT_NE(refusal({.threads = -2}).find("world.threads is -2"), std::string::npos);
  EXPECT_NE(refusal({.tp = INT64_MAX, .dp = INT64_MAX}).find("world.tp * world.pp * world.dp"),
            std::string::npos);
}

TEST(Layout, OptionsWithoutEffectAreRefused) {
  EXPECT_NE(refusal({.pp = 2, .dp = 2, .sequence_parallel = true})
                .find("world.sequence_parallel has no effect with world.tp 1"),
            std::string::npos);
  EXPECT_NE(refusal({.tp = 2, .dp = 2, .virtual_pp = 2})
                .find("world.virtual_pp has no effect with world.pp 1"),
            std::string::npos);
  EXPECT_NE(refusal({.tp = 2, .pp = 2, .distributed_optimizer = true})
                .find("world.distributed_optimizer has no effect with world.dp 1"),
            std::string::npos);
  const Layout all{.tp = 2,
                   .pp = 2,
                   .dp = 2,
                   .sequence_parallel = true,
                   .virtual_pp = 2,
                   .distributed_optimizer = true};
  EXPECT_NO_THROW(all.validate());
}

}  // namespace
}  // namespace retort::parallel
