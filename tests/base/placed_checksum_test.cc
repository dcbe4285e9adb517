#include "base/placed_checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <vector>

namespace retort {
namespace {

// Longer than what the factors are kept for, and no multiple of anything.
constexpr size_t kPlacedBytes = 70'001;

std::vector<std::byte> random_bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> all(size);
  for (std::byte& one : all)
    one = static_cast<std::byte>(random());
  return all;
}

// Whoever writes which part, in whatever order and at whatever places.
TEST(PlacedChecksum64, IsTheSumOverAnyParts) {
  const std::vector<std::byte> data = random_bytes(kPlacedBytes, 1);
  const std::span<const std::byte> all(data);
  std::mt19937 random(2);
  for (const uint64_t offset : {0ULL, 3ULL, 16'383ULL, 5'000'000'001ULL}) {
    const uint64_t whole = placed_checksum64(all, offset);
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<size_t> cuts{0, data.size()};
      for (int i = 0; i < 7; ++i)
        cuts.push_back(random() % data.size());
      std::sort(cuts.begin(), cuts.end());
      uint64_t sum = 0;
      for (size_t i = cuts.size() - 1; i > 0; --i)
        sum += placed_checksum64(all.subspan(cuts[i - 1], cuts[i] - cuts[i - 1]),
                                 offset + cuts[i - 1]);
      EXPECT_EQ(sum, whole) << offset;
    }
  }
}

TEST(PlacedChecksum64, FindsAByteThatChangesAndPartsThatAreMixedUp) {
  std::vector<std::byte> data = random_bytes(kPlacedBytes, 3);
  const uint64_t whole = placed_checksum64(data, 0);
  std::mt19937 random(4);
  for (int trial = 0; trial < 500; ++trial) {
    const size_t at = random() % data.size();
    const std::byte before = data[at];
    data[at] ^= static_cast<std::byte>(1 + random() % 255);
    EXPECT_NE(placed_checksum64(data, 0), whole) << at;
    data[at] = before;
  }

  // The same bytes at another place, whichever way the places differ.
  const std::vector<std::byte> part = random_bytes(4096, 5);
  std::vector<uint64_t> sums;
  for (const uint64_t offset : {0, 1, 4, 4096, 16'384, 32'768, 1 << 20})
    sums.push_back(placed_checksum64(part, offset));
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(std::adjacent_find(sums.begin(), sums.end()), sums.end());

  // A part that was not written reads as zeros.
  std::fill(data.begin() + 20'000, data.begin() + 24'096, std::byte{0});
  EXPECT_NE(placed_checksum64(data, 0), whole);
}

// From and to whatever place in memory: a copy goes in vectors, which begin at borders.
TEST(PlacedChecksum64, IsThatOfTheBytesThatAreCopied) {
  const std::vector<std::byte> data = random_bytes(kPlacedBytes, 6);
  for (const size_t from : {0, 1, 4, 7, 32}) {
    for (size_t to = 0; to < 40; ++to) {
      for (const size_t size : {size_t{0}, size_t{1}, size_t{6}, size_t{99}, size_t{16'384},
                                size_t{16'383}, kPlacedBytes - from}) {
        const uint64_t offset = 1'000'001 * from;
        const std::span<const std::byte> bytes = std::span(data).subspan(from, size);
        std::vector<std::byte> copy(to + size + 64, std::byte{0xee});
        const CopyTo kind = size % 2 == 0 ? CopyTo::kNewMemory : CopyTo::kUsedMemory;
        EXPECT_EQ(copy_with_placed_checksum64(copy.data() + to, bytes, offset, kind),
                  placed_checksum64(bytes, offset));

        const auto begin = copy.begin() + static_cast<ptrdiff_t>(to);
        const auto end = begin + static_cast<ptrdiff_t>(size);
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), begin)) << from << " " << to;
        const auto untouched = [](std::byte one) { return one == std::byte{0xee}; };
        EXPECT_TRUE(std::all_of(copy.begin(), begin, untouched) &&
                    std::all_of(end, copy.end(), untouched))
            << from << " " << to << " " << size;
      }
    }
  }
}

// It stands in files: it may not change. The words 1 and 2 of a file.
TEST(PlacedChecksum64, HasTheNumbersOfItsFormula) {
  const auto mix = [](uint64_t state) {
    uint64_t bits = state + 0x9e3779b97f4a7c15;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
  };
  const std::vector<std::byte> data{std::byte{5}, std::byte{1}, std::byte{0},
                                    std::byte{0}, std::byte{0}, std::byte{9}};
  const uint64_t words = (mix(0) % (1ULL << 32) | 1) * 0x105 + (mix(1) % (1ULL << 32) | 1) * 0x900;
  EXPECT_EQ(placed_checksum64(data, 0), (mix(~0ULL) | 1) * words);
  EXPECT_EQ(placed_checksum64({}, 77), 0U);
  EXPECT_EQ(placed_checksum64(std::vector<std::byte>(5000), 3), 0U);
}

}  // namespace
}  // namespace retort
