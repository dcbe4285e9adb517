// Counter-based randomness: every draw is a pure function of (seed, counters), so nothing depends
// on the order of calls, the batch or the layout, and nothing has to be stored to resume.
#pragma once

#include <cstdint>

namespace retort {

// 64 well-mixed bits of 64: one step of SplitMix64 (Steele, Lea and Flood 2014).
inline uint64_t random_mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// 64 well-mixed bits from a key and up to three counters (SplitMix64 finaliser chained over the
// words).
uint64_t random_bits(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0);

// Uniform in the open interval (0, 1), 53 bits.
double random_uniform(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0);

// Standard Gumbel noise, -log(-log(u)): the reference for the draws of generation
// (models/generation/request.h), whose kernels find the same maximum without forming the noise.
double random_gumbel(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0);

// A pseudo-random permutation of [0, size) evaluated at one index, in O(1) memory: an eight-round
// Feistel network on the next power of four, with cycle walking. (seed, epoch) select the
// permutation, which is the same on every rank.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t epoch);
  uint64_t size() const { return size_; }
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;
  uint64_t size_, seed_, epoch_;
  unsigned half_bits_;
};

}  // namespace retort
