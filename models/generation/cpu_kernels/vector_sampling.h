// Passes over a vocabulary, for VectorKernels. Private to models/.
#pragma once

#include "models/generation/cpu_kernels/vector_types.h"

namespace retort::models {
namespace {

void range(const float* x, int64_t size, float* largest, float* smallest) {
  float high = -__builtin_inff();
  float low = __builtin_inff();
#pragma omp simd reduction(max : high) reduction(min : low)
  for (int64_t i = 0; i < size; ++i) {
    high = x[i] > high ? x[i] : high;
    low = x[i] < low ? x[i] : low;
  }
  *largest = high;
  *smallest = low;
}

int64_t find(const float* x, int64_t size, float value) {
  constexpr int64_t kPiece = 256;
  // A piece is compared without branches; only the one that has the value is searched.
  int64_t i = 0;
  for (; i + kPiece <= size; i += kPiece) {
    int found = 0;
#pragma omp simd reduction(| : found)
    for (int64_t j = 0; j < kPiece; ++j)
      found |= x[i + j] == value;
    if (found) break;
  }
  while (i < size && !(x[i] == value))
    ++i;
  return i;
}

double exponentials(const float* __restrict x, float* __restrict out, int64_t size, float shift,
                    float scale) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += 4096) {
    const int64_t end = begin + 4096 < size ? begin + 4096 : size;
    float sum = 0;
    if (out != nullptr) {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) {
        out[i] = exp_float((x[i] - shift) * scale);
        sum += out[i];
      }
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i)
        sum += exp_float((x[i] - shift) * scale);
    }
    total += sum;
  }
  return total;
}

// mix() without its last step, which leaves the upper 31 bits as they are.
RETORT_INLINE uint64_t mix_upper(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  return (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
}
RETORT_INLINE uint64_t mix(uint64_t z) {
  z = mix_upper(z);
  return z ^ (z >> 31);
}

// -log(u) of a normal u in (0, 1), to about 1e-11: u = 2^k m with m in [1/sqrt(2), sqrt(2)), log m
// = 2 artanh((m-1)/(m+1)).
RETORT_INLINE double minus_log(double u) {
  const auto bits = __builtin_bit_cast(int64_t, u);
  const int64_t k = (bits - 0x3fe6a09e667f3bcdLL) >> 52;
  const double m = __builtin_bit_cast(double, bits - (k << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  // One product for each sum, so that a compiler that makes one operation of both has no choice: a
  // vector's lane and a number by itself come to the same bits.
  const double half = s + s * z * p;
  return -(static_cast<double>(k) * 0.6931471805599453 + (half + half));
}

RETORT_INLINE double race_score(float weight, uint64_t bits) {
  const double u = (static_cast<double>(static_cast<int64_t>(bits >> 11)) + 0.5) * 0x1.0p-53;
  return static_cast<double>(weight) / minus_log(u);
}

// The race by the score of every id.
int64_t plain_race(const float* weights, int64_t size, uint64_t key) {
  // A piece is scored without branches and searched only if it beats the best so far. Of equal
  // scores the first wins.
  constexpr int64_t kPiece = 512;
  double scores[kPiece];
  double best = 0;
  int64_t winner = 0;
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    const int64_t count = size - begin < kPiece ? size - begin : kPiece;
    double largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; ++i) {
      scores[i] = race_score(weights[begin + i], mix(key ^ static_cast<uint64_t>(begin + i)));
      largest = scores[i] > largest ? scores[i] : largest;
    }
    if (!(largest > best)) continue;
    best = largest;
    int64_t i = 0;
    while (scores[i] != largest)
      ++i;
    winner = begin + i;
  }
  return winner;
}

// The bound. Let g be the first 24 bits of an id's ~bits, so that no u of such bits is above
// 1 - g / 2^24: k = bits >> 11 is below (2^24 - g) 2^29, which is a double, and so is what k + 0.5
// rounds to not above it. As -log u >= 1 - u for every u, and nearly equal where winners are,
//
//   weight / -log u > best   only if   weight * (2^24 / best) >= g,
//
// with no logarithm, no division and no double for those that lose. What is rounded, as shares:
//   minus_log   2^-44   the terms that its series lacks, z^8 / 17 / (1 - z) of log m with
//                       z < 0.0295, and its roundings, 2^-49: |k| log 2 is never less than twice
//                       |log m|, so that the sum of both loses at most two bits
//   race_score  2^-53   the division
//   factor      2^-24 + 2^-52   a division and a product in double, then rounded to float
//   product     2^-24   of weight and factor, in float
// Together that is less than 2^-23 + 2^-43. The factor is larger by 2^-20, eight times as much,
// which lets one id in a million of those that may win be scored in vain.
constexpr double kBoundSlack = 0x1.0p-20;

// 2^24 / best for the bound. Where a float cannot hold it, more ids may win: all of them above, and
// below as many as with the least float that every processor multiplies by.
RETORT_INLINE float factor_to_beat(double best) {
  const double factor = 0x1.0p24 / best * (1.0 + kBoundSlack);
  if (factor > 0x1.0p127) return __builtin_inff();
  return factor < 0x1.0p-126 ? 0x1.0p-126f : static_cast<float>(factor);
}

// False for weights of 0 and NaN under an infinite factor: they never win. `bits` may be those of
// mix_upper().
RETORT_INLINE bool may_win(float weight, float factor, uint64_t bits) {
  return weight * factor >= static_cast<float>(static_cast<int32_t>(~bits >> 40));
}

int64_t race(const float* weights, int64_t size, uint64_t key) {
  // A piece is compared with the bound without branches. If an id of it may win, those that may are
  // scored one after the other, and the bound rises with each that leads: of equal scores the first
  // wins.
  constexpr int64_t kPiece = 256;
  double best = 0;
  float factor = __builtin_inff();
  int64_t winner = 0;
  for (int64_t begin = 0; begin < size; begin += kPiece) {
    const int64_t end = size - begin < kPiece ? size : begin + kPiece;
    int some_may_win = 0;
#pragma omp simd reduction(| : some_may_win)
    for (int64_t i = begin; i < end; ++i)
      some_may_win |= may_win(weights[i], factor, mix_upper(key ^ static_cast<uint64_t>(i)));
    if (!some_may_win) continue;

    for (int64_t i = begin; i < end; ++i) {
      const uint64_t bits = mix(key ^ static_cast<uint64_t>(i));
      if (!may_win(weights[i], factor, bits)) continue;
      const double score = race_score(weights[i], bits);
      if (!(score > best)) continue;
      best = score;
      factor = factor_to_beat(best);
      winner = i;
    }
  }
  return winner;
}

}  // namespace
}  // namespace retort::models
