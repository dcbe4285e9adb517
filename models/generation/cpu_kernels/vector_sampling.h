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

RETORT_INLINE uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
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
  return -(static_cast<double>(k) * 0.6931471805599453 + 2.0 * (s + s * z * p));
}

int64_t race(const float* weights, int64_t size, uint64_t key) {
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
      const uint64_t bits = mix(key ^ static_cast<uint64_t>(begin + i));
      const double u = (static_cast<double>(static_cast<int64_t>(bits >> 11)) + 0.5) * 0x1.0p-53;
      scores[i] = static_cast<double>(weights[begin + i]) / minus_log(u);
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

}  // namespace
}  // namespace retort::models
