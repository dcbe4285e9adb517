#include "base/placed_checksum.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

// Every factor is odd, so that no product of a word that is not 0 vanishes.
const std::array<uint32_t, kStripWords>& word_factors() {
  static const std::array<uint32_t, kStripWords> factors = [] {
    std::array<uint32_t, kStripWords> made{};
    for (size_t i = 0; i < made.size(); ++i)
      made[i] = static_cast<uint32_t>(split_mix(i)) | 1U;
    return made;
  }();
  return factors;
}

// A Copy says where the words are copied to while they are summed: nowhere, where `to` is null.
struct Copy {
  std::byte* to = nullptr;
  CopyTo kind = CopyTo::kNewMemory;
  Copy behind(size_t bytes) const { return {to == nullptr ? nullptr : to + bytes, kind}; }
};

void copy_bytes(const Copy& copy, const std::byte* bytes, size_t size) {
  if (copy.to != nullptr && size > 0) std::memcpy(copy.to, bytes, size);
}

uint64_t sum_in_a_loop(const std::byte* bytes, const uint32_t* factors, size_t words,
                       const Copy& copy) {
  copy_bytes(copy, bytes, words * kWord);
  uint64_t sum = 0;
  for (size_t i = 0; i < words; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + i * kWord, kWord);
    sum += uint64_t{factors[i]} * word;
  }
  return sum;
}

#if defined(__x86_64__)
constexpr size_t kVectorBytes = sizeof(__m256i);
constexpr size_t kVectorWords = kVectorBytes / kWord;
// So far ahead that a page of the map is begun before it is needed: the processor's own prefetch
// ends with the page.
constexpr size_t kAheadBytes = 4096;

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// The products of the words at even places, and of those at odd ones.
[[gnu::target("avx2"), gnu::always_inline]] inline __m256i products(__m256i words,
                                                                    __m256i factors) {
  constexpr int kOddToEven = 0xf5;
  return _mm256_add_epi64(_mm256_mul_epu32(words, factors),
                          _mm256_mul_epu32(_mm256_shuffle_epi32(words, kOddToEven),
                                           _mm256_shuffle_epi32(factors, kOddToEven)));
}

enum class Stores { kNone, kCached, kStreamed };

// Two vectors, which are a line of the cache, at a time. `to` begins at a vector's border.
template <Stores kStores>
[[gnu::target("avx2")]] uint64_t sum_of_lines(const std::byte* bytes, const uint32_t* factors,
                                              size_t words, std::byte* to) {
  __m256i first_sum = _mm256_setzero_si256();
  __m256i second_sum = _mm256_setzero_si256();
  for (size_t i = 0; i < words; i += 2 * kVectorWords) {
    const std::byte* line = bytes + i * kWord;
    // An address that may be past the object, so it is made as a number.
    _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(line) + kAheadBytes),
                 _MM_HINT_T0);
    const __m256i first = load(line);
    const __m256i second = load(line + kVectorBytes);
    if constexpr (kStores == Stores::kCached) {
      auto* const copy = reinterpret_cast<__m256i*>(to + i * kWord);
      _mm256_store_si256(copy, first);
      _mm256_store_si256(copy + 1, second);
    } else if constexpr (kStores == Stores::kStreamed) {
      auto* const copy = reinterpret_cast<__m256i*>(to + i * kWord);
      _mm256_stream_si256(copy, first);
      _mm256_stream_si256(copy + 1, second);
    }
    first_sum = _mm256_add_epi64(first_sum, products(first, load(factors + i)));
    second_sum = _mm256_add_epi64(second_sum, products(second, load(factors + i + kVectorWords)));
  }

  alignas(kVectorBytes) std::array<uint64_t, 4> sums{};
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums.data()),
                     _mm256_add_epi64(first_sum, second_sum));
  return sums[0] + sums[1] + sums[2] + sums[3];
}

using SumOfLines = uint64_t (*)(const std::byte*, const uint32_t*, size_t, std::byte*);

SumOfLines sum_of_lines_with(const Copy& copy) {
  if (copy.to == nullptr) return &sum_of_lines<Stores::kNone>;
  return copy.kind == CopyTo::kNewMemory ? &sum_of_lines<Stores::kCached>
                                         : &sum_of_lines<Stores::kStreamed>;
}

// Sums as fast as memory is read. Words before a vector's border of the copy, and behind the last
// line, go one by one.
uint64_t sum_of_words(const std::byte* bytes, const uint32_t* factors, size_t words,
                      const Copy& copy) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  const size_t past_border = reinterpret_cast<uintptr_t>(copy.to) % kVectorBytes;
  if (!has_avx2) return sum_in_a_loop(bytes, factors, words, copy);
  // No word of such a copy ends at a border.
  if (past_border % kWord != 0) {
    copy_bytes(copy, bytes, words * kWord);
    return sum_of_words(bytes, factors, words, {});
  }

  const size_t before = past_border == 0 ? 0 : (kVectorBytes - past_border) / kWord;
  const size_t begin = std::min(words, before);
  const size_t end = begin + (words - begin) / (2 * kVectorWords) * (2 * kVectorWords);
  return sum_in_a_loop(bytes, factors, begin, copy) +
         sum_of_lines_with(copy)(bytes + begin * kWord, factors + begin, end - begin,
                                 copy.behind(begin * kWord).to) +
         sum_in_a_loop(bytes + end * kWord, factors + end, words - end, copy.behind(end * kWord));
}

// The fence makes what went past the caches visible to other threads.
void end_copy() { _mm_sfence(); }
#else
uint64_t sum_of_words(const std::byte* bytes, const uint32_t* factors, size_t words,
                      const Copy& copy) {
  return sum_in_a_loop(bytes, factors, words, copy);
}

void end_copy() {}
#endif

// Sums `size` bytes at `begin` of a strip. A word of which only some bytes are here has 0 for the
// others: the sum is linear.
uint64_t sum_in_strip(const std::byte* bytes, size_t size, size_t begin, Copy copy) {
  const uint32_t* factors = word_factors().data() + begin / kWord;
  uint64_t sum = 0;
  const auto take = [&](size_t taken) {
    bytes += taken;
    size -= taken;
    copy = copy.behind(taken);
  };
  const auto add_part = [&](size_t at, size_t count) {
    std::array<std::byte, kWord> word{};
    std::memcpy(word.data() + at, bytes, count);
    copy_bytes(copy, bytes, count);
    sum += sum_in_a_loop(word.data(), factors, 1, {});
    take(count);
    ++factors;
  };

  if (const size_t at = begin % kWord; at != 0) add_part(at, std::min(kWord - at, size));
  const size_t words = size / kWord;
  sum += sum_of_words(bytes, factors, words, copy);
  take(words * kWord);
  factors += words;
  if (size > 0) add_part(0, size);
  return sum;
}

uint64_t sum_of_strips(std::span<const std::byte> bytes, uint64_t offset, Copy copy) {
  uint64_t sum = 0;
  while (!bytes.empty()) {
    const size_t begin = offset % kStripBytes;
    const size_t size = std::min(bytes.size(), kStripBytes - begin);
    const uint64_t strip = offset / kStripBytes;
    // The complement keeps the factors of strips apart from those of words.
    const uint64_t factor = split_mix(~strip) | 1U;
    sum += factor * sum_in_strip(bytes.data(), size, begin, copy);
    bytes = bytes.subspan(size);
    offset += size;
    copy = copy.behind(size);
  }
  return sum;
}

}  // namespace

uint64_t placed_checksum64(std::span<const std::byte> bytes, uint64_t offset) {
  return sum_of_strips(bytes, offset, {});
}

uint64_t copy_with_placed_checksum64(std::byte* to, std::span<const std::byte> bytes,
                                     uint64_t offset, CopyTo kind) {
  const uint64_t sum = sum_of_strips(bytes, offset, {to, kind});
  end_copy();
  return sum;
}

}  // namespace retort
