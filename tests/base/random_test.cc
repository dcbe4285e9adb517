#include "base/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <vector>

namespace retort {
namespace {

TEST(RandomBits, DependsOnEveryWordAndItsPlace) {
  const uint64_t base = random_bits(1, 2, 3, 4);
  EXPECT_EQ(random_bits(1, 2, 3, 4), base);
  const std::set<uint64_t> values{base,
                                  random_bits(2, 2, 3, 4),
                                  random_bits(1, 3, 3, 4),
                                  random_bits(1, 2, 4, 4),
                                  random_bits(1, 2, 3, 5),
                                  random_bits(2, 1, 3, 4),
                                  random_bits(1, 2, 4, 3),
                                  random_bits(1, 3, 2, 4)};
  EXPECT_EQ(values.size(), 8u);
}

TEST(RandomBits, FlipsHalfOfTheBitsForOneInputBit) {
  double flipped = 0;
  constexpr int kPairs = 64 * 64;
  for (uint64_t i = 0; i < 64; ++i)
    for (unsigned bit = 0; bit < 64; ++bit)
      flipped += std::popcount(random_bits(7, i) ^ random_bits(7, i ^ (uint64_t{1} << bit)));
  // 32 +- 4/sqrt(4096) per pair; five sigma.
  EXPECT_NEAR(flipped / kPairs, 32.0, 5 * 4.0 / std::sqrt(double{kPairs}));
}

TEST(RandomUniform, IsUniformInTheOpenInterval) {
  constexpr int kDraws = 200'000;
  constexpr int kBins = 20;
  std::vector<int> bins(kBins);
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random_uniform(3, static_cast<uint64_t>(i), 1);
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * kBins)];
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  double chi2 = 0;
  for (int count : bins)
    chi2 += std::pow(count - kDraws / double{kBins}, 2) / (kDraws / double{kBins});
  EXPECT_LT(chi2, 50.8) << "19 degrees of freedom, p = 1e-4";
}

TEST(RandomGumbel, HasTheRightMeanAndVariance) {
  constexpr int kDraws = 200'000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double g = random_gumbel(5, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(g));
    sum += g;
    squares += g * g;
  }
  const double mean = sum / kDraws;
  const double variance = squares / kDraws - mean * mean;
  EXPECT_NEAR(mean, 0.5772156649, 5 * 1.2825 / std::sqrt(double{kDraws}));
  EXPECT_NEAR(variance, M_PI * M_PI / 6, 0.03);
}

TEST(RandomGumbel, ArgmaxDrawsFromTheCategorical) {
  const std::vector<double> probabilities{0.5, 0.3, 0.15, 0.05};
  std::vector<int> counts(4);
  constexpr int kDraws = 40'000;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    size_t best = 0;
    double best_value = -1e300;
    for (size_t id = 0; id < 4; ++id)
      if (const double value = std::log(probabilities[id]) + random_gumbel(11, draw, id);
          value > best_value) {
        best_value = value;
        best = id;
      }
    ++counts[best];
  }
  for (size_t id = 0; id < 4; ++id) {
    const double p = probabilities[id];
    EXPECT_NEAR(counts[id] / double{kDraws}, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << id;
  }
}

TEST(Permutation, IsABijectionForEverySize) {
  for (uint64_t size : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4097}) {
    const Permutation permutation(size, 42, 3);
    EXPECT_EQ(permutation.size(), size);
    std::vector<bool> seen(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, size);
      ASSERT_FALSE(seen[image]) << "twice at size " << size;
      seen[image] = true;
    }
  }
}

TEST(Permutation, IsAFunctionOfSeedAndEpoch) {
  constexpr uint64_t kSize = 1000;
  const Permutation a(kSize, 1, 0), same(kSize, 1, 0), seed(kSize, 2, 0), epoch(kSize, 1, 1);
  int fixed_seed = 0;
  int fixed_epoch = 0;
  int fixed_identity = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(a(i), same(i));
    fixed_seed += a(i) == seed(i);
    fixed_epoch += a(i) == epoch(i);
    fixed_identity += a(i) == i;
  }
  // Agreements of two random permutations are Poisson(1).
  EXPECT_LE(fixed_seed, 8);
  EXPECT_LE(fixed_epoch, 8);
  EXPECT_LE(fixed_identity, 8);
}

TEST(Permutation, SpreadsEveryIndexOverAllPlaces) {
  // Over many epochs each index lands in each place equally often (with four Feistel rounds some
  // places are up to a third more likely at such sizes).
  constexpr int kSize = 32;
  constexpr int kEpochs = 20'000;
  std::vector<int> counts(kSize * kSize);
  for (uint64_t e = 0; e < kEpochs; ++e) {
    const Permutation permutation(kSize, 9, e);
    for (uint64_t i = 0; i < kSize; ++i)
      ++counts[i * kSize + permutation(i)];
  }
  const double expected = kEpochs / double{kSize};
  const double sigma = std::sqrt(expected * (1 - 1.0 / kSize));
  for (int count : counts)
    EXPECT_NEAR(count, expected, 6 * sigma);
}

TEST(Permutation, NeighboursAreNotNeighboursAfterwards) {
  constexpr uint64_t kSize = 10'000;
  const Permutation permutation(kSize, 123, 0);
  double products = 0;
  const double mean = (kSize - 1) / 2.0;
  const double variance = (double{kSize} * kSize - 1) / 12;
  for (uint64_t i = 0; i + 1 < kSize; ++i)
    products += (static_cast<double>(permutation(i)) - mean) *
                (static_cast<double>(permutation(i + 1)) - mean);
  EXPECT_NEAR(products / (kSize - 1) / variance, 0.0, 5 / std::sqrt(double{kSize}));
}

TEST(Permutation, LargeSizesStayInRange) {
  const uint64_t size = (uint64_t{1} << 40) + 12345;
  const Permutation permutation(size, 8, 0);
  std::set<uint64_t> images;
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_LT(permutation(size - 1 - i), size);
    images.insert(permutation(size - 1 - i));
  }
  EXPECT_EQ(images.size(), 1000u);
}

TEST(PermutationDeathTest, IndexOutsideIsABug) {
  const Permutation permutation(5, 0, 0);
  EXPECT_DEATH(permutation(5), "index 5 of a permutation of 5");
}

// The order of data and the noise of sampling are part of what a run means: these numbers may not
// change. Computed from the definition by a second implementation (Python integers).
TEST(RandomBits, GoldenValues) {
  EXPECT_EQ(random_bits(0, 0), 0x2130748aaac80268ULL);
  EXPECT_EQ(random_bits(42, 1, 2, 3), 0x3fb96077da5807fdULL);
  const Permutation permutation(8, 42, 0);
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < 8; ++i)
    order.push_back(permutation(i));
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 7, 3, 6, 4, 1, 5, 0}));
}

}  // namespace
}  // namespace retort
