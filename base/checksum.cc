#include "base/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace retort {
namespace {

constexpr size_t kLanes = 8;
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15ull, kOddToo = 0xD6E8FEB86659FD93ull;

// A word is spread before it is added, and the sum once more, so that no few bits of one word undo those of another.
uint64_t mixed(uint64_t lane, uint64_t word) { return std::rotl(lane + word * kOddToo, 31) * kOdd; }

uint64_t final_mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

}  // namespace

uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed) {
  std::array<uint64_t, kLanes> lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = seed + i + 1;
  size_t at = 0;
  for (; at + 8 * kLanes <= bytes.size(); at += 8 * kLanes) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), bytes.data() + at, 8 * kLanes);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = mixed(lanes[i], words[i]);
  }
  for (; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
    lanes[0] = mixed(lanes[0], word);
  }
  uint64_t result = bytes.size() * kOdd;
  for (const uint64_t lane : lanes) result = final_mix(result ^ lane);
  return result;
}

}  // namespace retort
