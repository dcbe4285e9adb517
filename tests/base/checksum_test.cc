#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

namespace retort {
namespace {

std::vector<std::byte> bytes(size_t size) {
  std::vector<std::byte> all(size);
  for (size_t i = 0; i < size; ++i)
    all[i] = static_cast<std::byte>(i * 37 + (i >> 8));
  return all;
}

TEST(Checksum64, FindsEveryFlippedBit) {
  for (const size_t size : {1, 7, 8, 31, 32, 33, 100}) {
    auto data = bytes(size);
    std::set<uint64_t> seen{checksum64(data)};
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      EXPECT_TRUE(seen.insert(checksum64(data)).second) << size << " bytes, bit " << bit;
      data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
  }
}

TEST(Checksum64, FindsSwappedWordsLengthsAndSeeds) {
  const auto data = bytes(256);
  std::set<uint64_t> seen{checksum64(data)};
  for (size_t i = 0; i < 32; ++i)
    for (size_t j = 0; j < i; ++j) {
      auto other = data;
      std::swap_ranges(other.begin() + static_cast<ptrdiff_t>(8 * i),
                       other.begin() + static_cast<ptrdiff_t>(8 * i + 8),
                       other.begin() + static_cast<ptrdiff_t>(8 * j));
      EXPECT_TRUE(seen.insert(checksum64(other)).second) << i << " and " << j;
    }
  for (uint64_t seed = 1; seed < 100; ++seed)
    EXPECT_TRUE(seen.insert(checksum64(data, seed)).second) << seed;
  std::vector<std::byte> zeros;
  for (; zeros.size() < 100; zeros.emplace_back())
    EXPECT_TRUE(seen.insert(checksum64(zeros)).second) << zeros.size();
}

TEST(Checksum64, DoesNotDependOnAlignment) {
  const auto data = bytes(101);
  for (size_t shift = 1; shift < 8; ++shift) {
    std::vector<std::byte> moved(data.size() + shift);
    std::memcpy(moved.data() + shift, data.data(), data.size());
    EXPECT_EQ(checksum64({moved.data() + shift, data.size()}), checksum64(data)) << shift;
  }
}

// Sizes around those of its pieces.
TEST(CopyWithChecksum64, CopiesAndSaysTheSame) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{300}, size_t{128} << 10,
                            (size_t{128} << 10) + 1, (size_t{384} << 10) - 7}) {
    const auto data = bytes(size);
    std::vector<std::byte> copy(size);
    EXPECT_EQ(copy_with_checksum64(copy.data(), data, 7), checksum64(data, 7)) << size;
    EXPECT_EQ(copy, data) << size;
  }
}

}  // namespace
}  // namespace retort
