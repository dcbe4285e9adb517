#include "base/random.h"

#include <bit>
#include <cmath>

#include "base/error.h"

namespace retort {

uint64_t random_bits(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  return random_mix(random_mix(random_mix(random_mix(seed) ^ a) ^ b) ^ c);
}

double random_uniform(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  return (static_cast<double>(random_bits(seed, a, b, c) >> 11) + 0.5) * 0x1.0p-53;
}

double random_gumbel(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  return -std::log(-std::log(random_uniform(seed, a, b, c)));
}

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t epoch)
    : size_(size), seed_(seed), epoch_(epoch) {
  const unsigned bits = size > 1 ? static_cast<unsigned>(std::bit_width(size - 1)) : 2;
  half_bits_ = (bits + 1) / 2;
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < 8; ++round) {
    const uint64_t next = left ^ (random_bits(seed_, epoch_, round, right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  RETORT_CHECK(index < size_) << "index " << index << " of a permutation of " << size_;
  uint64_t value = index;
  do {
    value = encrypt(value);
  } while (value >= size_);
  return value;
}

}  // namespace retort
