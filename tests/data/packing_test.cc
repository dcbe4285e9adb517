#include "recipes/data/detail/packing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/random.h"

namespace retort::data::detail {
namespace {

using Packs = std::vector<std::vector<int64_t>>;

TEST(PackBestFit, FillsTheFullestRowThatHasRoom) {
  EXPECT_EQ(pack_best_fit({}, 10), Packs{});
  EXPECT_EQ(pack_best_fit({10}, 10), (Packs{{0}}));
  // 7, 6, 4, 3, 2: 7+3, 6+4, then 2 opens a row of its own.
  EXPECT_EQ(pack_best_fit({4, 7, 2, 6, 3}, 10), (Packs{{0, 3}, {1, 4}, {2}}));
  // 5 goes to the row with 5 left, not to the one with 6 left.
  EXPECT_EQ(pack_best_fit({5, 1, 5, 6}, 11), (Packs{{0, 3}, {1, 2}}));
}

TEST(PackBestFit, KeepsEverySampleAndWastesLittle) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<int64_t> lengths(500);
    for (size_t i = 0; i < lengths.size(); ++i)
      lengths[i] = 1 + static_cast<int64_t>(64 * std::pow(random_uniform(seed, i), 2));
    const auto packs = pack_best_fit(lengths, 64);
    std::vector<int> seen(lengths.size(), 0);
    for (const auto& pack : packs) {
      int64_t tokens = 0;
      for (const int64_t i : pack)
        tokens += lengths[static_cast<size_t>(i)], ++seen[static_cast<size_t>(i)];
      EXPECT_LE(tokens, 64);
    }
    EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
    const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    EXPECT_LE(static_cast<int64_t>(packs.size()), (total + 63) / 64 * 21 / 20 + 1)
        << "more than 5 % of padding";
  }
}

}  // namespace
}  // namespace retort::data::detail
