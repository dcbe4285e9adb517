// Vectors as wide as the instruction set that the including file is compiled for. Private to
// models/. Everything is in an anonymous namespace: the three files that end up including this
// differ in their instruction set, so nothing with external linkage, inline functions of the
// standard library among them, may be instantiated here.
#pragma once

#include <stdint.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "models/generation/vector_kernels.h"

#define RETORT_INLINE inline __attribute__((always_inline))

namespace retort::models {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRowTile = 4;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kRowTile = 2;
#else
constexpr int kLanes = 4;
constexpr int kRowTile = 2;
#endif
constexpr int kColumnTile = 4;

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float LooseVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint16_t LooseHalfVec __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
typedef uint32_t IntVec __attribute__((vector_size(4 * kLanes)));

RETORT_INLINE float bit_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

RETORT_INLINE Vec load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
RETORT_INLINE Vec load(const uint16_t* p) {
  const IntVec wide = __builtin_convertvector(*reinterpret_cast<const LooseHalfVec*>(p), IntVec)
                      << 16;
  return (Vec)wide;
}
RETORT_INLINE void store(float* p, const Vec& v) { *reinterpret_cast<LooseVec*>(p) = v; }

// The first `count` lanes, the others 0.
RETORT_INLINE Vec load_some(const float* p, int64_t count) {
#ifdef __AVX512F__
  return (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
#else
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i)
    lanes[i] = p[i];
  return load(lanes);
#endif
}
RETORT_INLINE Vec load_some(const uint16_t* p, int64_t count) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i)
    lanes[i] = bit_float(static_cast<uint32_t>(p[i]) << 16);
  return load(lanes);
}

// e^x within 2 units in the last place on [-87, 88], clamped outside.
RETORT_INLINE float exp_float(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  const float n = (x * 1.44269504088896341f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * bit_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

}  // namespace
}  // namespace retort::models
