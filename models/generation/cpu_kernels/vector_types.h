// Vectors as wide as the instruction set that the including file is compiled for. Private to
// models/. Everything is in an anonymous namespace: the three files that end up including this
// differ in their instruction set, so nothing with external linkage, inline functions of the
// standard library among them, may be instantiated here.
#pragma once

#include <stdint.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "models/generation/cpu_kernels/vector_kernels.h"
#include "models/ops/exp_float.h"

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

}  // namespace
}  // namespace retort::models
