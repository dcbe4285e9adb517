#include "base/placed_checksum.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace retort {
namespace {

// A file is strips of words. A word's factor follows from its place in its strip, and each strip
// has one more, so that the factors of a file of any length come out of a table that fits a cache.
constexpr size_t kWord = sizeof(uint32_t);
constexpr size_t kStripWords = 4096;
constexpr size_t kStripBytes = kStripWords * kWord;

// The output function of SplitMix64 (G. Steele, D. Lea, C. Flood, 2014).
constexpr uint64_t split_mix(uint64_t state) {
  uint64_t bits = state + 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// Odd, so that no product of a word that is not 0 vanishes.
const std::array<uint32_t, kStripWords>& word_factors() {
  static const std::array<uint32_t, kStripWords> factors = [] {
    std::array<uint32_t, kStripWords> made{};
    for (size_t i = 0; i < made.size(); ++i)
      made[i] = static_cast<uint32_t>(split_mix(i)) | 1U;
    return made;
  }();
  return factors;
}

[[gnu::always_inline]] inline uint64_t sum_in_a_loop(const std::byte* bytes,
                                                     const uint32_t* factors, size_t words) {
  uint64_t sum = 0;
  for (size_t i = 0; i < words; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + i * kWord, kWord);
    sum += uint64_t{factors[i]} * word;
  }
  return sum;
}

// The same loop in the widest vectors that are worth it here: as fast as memory is read.
#if defined(__x86_64__)
[[gnu::target("avx2")]] uint64_t sum_in_avx2(const std::byte* bytes, const uint32_t* factors,
                                             size_t words) {
  return sum_in_a_loop(bytes, factors, words);
}

uint64_t sum_of_words(const std::byte* bytes, const uint32_t* factors, size_t words) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2 ? sum_in_avx2(bytes, factors, words) : sum_in_a_loop(bytes, factors, words);
}
#else
uint64_t sum_of_words(const std::byte* bytes, const uint32_t* factors, size_t words) {
  return sum_in_a_loop(bytes, factors, words);
}
#endif

// `size` bytes at `begin` of a strip. A word of which only some bytes are here has 0 for the
// others: the sum is linear.
uint64_t sum_in_strip(const std::byte* bytes, size_t size, size_t begin) {
  const uint32_t* factors = word_factors().data() + begin / kWord;
  uint64_t sum = 0;
  const auto add_part = [&](size_t at, size_t count) {
    std::array<std::byte, kWord> word{};
    std::memcpy(word.data() + at, bytes, count);
    sum += sum_of_words(word.data(), factors, 1);
    bytes += count;
    size -= count;
    ++factors;
  };

  if (const size_t at = begin % kWord; at != 0) add_part(at, std::min(kWord - at, size));
  const size_t words = size / kWord;
  sum += sum_of_words(bytes, factors, words);
  bytes += words * kWord;
  size -= words * kWord;
  factors += words;
  if (size > 0) add_part(0, size);
  return sum;
}

}  // namespace

uint64_t placed_checksum64(std::span<const std::byte> bytes, uint64_t offset) {
  uint64_t sum = 0;
  while (!bytes.empty()) {
    const size_t begin = offset % kStripBytes;
    const size_t size = std::min(bytes.size(), kStripBytes - begin);
    const uint64_t strip = offset / kStripBytes;
    // Other numbers than those of the words.
    const uint64_t factor = split_mix(~strip) | 1U;
    sum += factor * sum_in_strip(bytes.data(), size, begin);
    bytes = bytes.subspan(size);
    offset += size;
  }
  return sum;
}

}  // namespace retort
