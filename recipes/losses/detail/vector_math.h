// Vectors of RETORT_LANES floats as GCC vector extensions, exp and log on them. Included only by
// row_kernels_<isa>.cc, inside the namespace RETORT_ISA, so that code for one instruction set is
// never merged with another's by the linker. No std templates here for the same reason.
#pragma once

#include <cstdint>
#include <cstring>

#if !defined(RETORT_LANES) || !defined(RETORT_ISA)
#error "include this from row_kernels_<isa>.cc"
#endif

#define RETORT_INLINE static inline __attribute__((always_inline))

namespace retort::losses::detail::RETORT_ISA {

constexpr int kLanes = RETORT_LANES;
typedef float Vec __attribute__((vector_size(RETORT_LANES * 4)));
typedef int32_t IntVec __attribute__((vector_size(RETORT_LANES * 4)));
typedef float HalfVec __attribute__((vector_size(RETORT_LANES * 2)));
typedef double DoubleVec __attribute__((vector_size(RETORT_LANES * 4)));  // half as many lanes
typedef Vec UnalignedVec __attribute__((aligned(4), may_alias));

// Elements past the end of a row: far below any logit, so that both sides have probability 0 there,
// yet finite.
constexpr float kPadding = -1e30f;

RETORT_INLINE Vec splat(float x) { return Vec{} + x; }

RETORT_INLINE Vec load(const float* p, int64_t left) {
  if (left >= kLanes) [[likely]]
    return *reinterpret_cast<const UnalignedVec*>(p);
  float padded[kLanes];
  for (int i = 0; i < kLanes; ++i)
    padded[i] = i < left ? p[i] : kPadding;
  Vec v;
  __builtin_memcpy(&v, padded, sizeof v);
  return v;
}

RETORT_INLINE void store(float* p, int64_t left, Vec v) {
  if (left >= kLanes) [[likely]] {
    *reinterpret_cast<UnalignedVec*>(p) = v;
    return;
  }
  for (int i = 0; i < left; ++i)
    p[i] = v[i];
}

// Probabilities below e^-64 = 1.6e-28 of the largest are 0: what they add is far below rounding,
// and no product of two factors becomes a denormal, which would cost a hundred cycles.
constexpr float kLogSmallest = -64.0f;

// e^x for x <= 0 within 2 ulp (Taylor to x^7 after reduction by ln 2), 0 below kLogSmallest; NaN
// stays NaN.
RETORT_INLINE Vec exp_negative(Vec x) {
  // x = n ln 2 + r, ln 2 in two parts so that n times it stays exact.
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec in_range = x < kLogSmallest ? splat(kLogSmallest) : x;
  const Vec shifted = in_range * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  Vec r = in_range - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;

  // Taylor's polynomial of the remainder, by Horner.
  Vec p = splat(1.0f / 5040);
  p = p * r + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;

  // Times 2^n, whose bits are the exponent's.
  const IntVec bits = ((IntVec)shifted - (IntVec)magic + 127) << 23;
  const Vec value = p * (Vec)bits;
  return x < kLogSmallest ? Vec{} : value;
}

// ln x of a positive normal x within 1 ulp or so, exactly 0 at 1 (Cephes' polynomial on [sqrt(1/2),
// sqrt(2)]).
RETORT_INLINE Vec log_positive(Vec x) {
  // x = m 2^exponent with m in [sqrt(1/2), sqrt(2)), less 1 for the polynomial.
  const IntVec bits = (IntVec)x;
  IntVec exponent = (bits >> 23) - 126;
  Vec m = (Vec)((bits & 0x007fffff) | 0x3f000000);  // [0.5, 1)
  const IntVec small = m < 0.707106781186547524f;
  exponent = exponent + small;  // a true lane is -1
  m = (small ? m + m : m) - 1.0f;
  const Vec e = __builtin_convertvector(exponent, Vec);

  // ln(1 + m), by Horner.
  const Vec m2 = m * m;
  Vec p = splat(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;

  // The small parts of the sum first.
  Vec y = p * m * m2;
  y = y + e * -2.12194440e-4f;
  y = y - 0.5f * m2;
  return m + y + e * 0.693359375f;
}

// A sum in double, lane by lane; total() adds the lanes in order.
struct Sum {
  DoubleVec low = {}, high = {};

  RETORT_INLINE DoubleVec widen(const Vec& v, int half) {
    HalfVec part;
    __builtin_memcpy(&part, reinterpret_cast<const char*>(&v) + half * sizeof part, sizeof part);
    return __builtin_convertvector(part, DoubleVec);
  }
  __attribute__((always_inline)) void add(Vec v) {
    low += widen(v, 0);
    high += widen(v, 1);
  }
  __attribute__((always_inline)) double total() const {
    const DoubleVec both = low + high;
    double sum = 0;
    for (int i = 0; i < kLanes / 2; ++i)
      sum += both[i];
    return sum;
  }
};

// The largest element; NaN elements do not count (they show up in the sums).
static float max_of(const float* x, int64_t n) {
  // Four vectors at a time, so that no comparison waits for the one before.
  Vec a = splat(-__builtin_inff());
  Vec b = a;
  Vec c = a;
  Vec d = a;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const Vec w = load(x + i, kLanes);
    const Vec v = load(x + i + kLanes, kLanes);
    const Vec u = load(x + i + 2 * kLanes, kLanes);
    const Vec t = load(x + i + 3 * kLanes, kLanes);
    a = w > a ? w : a;
    b = v > b ? v : b;
    c = u > c ? u : c;
    d = t > d ? t : d;
  }

  // The four vectors are folded into one, then its lanes, then the elements that were left over.
  a = b > a ? b : a;
  c = d > c ? d : c;
  a = c > a ? c : a;
  float m = -__builtin_inff();
  for (int lane = 0; lane < kLanes; ++lane)
    m = a[lane] > m ? a[lane] : m;
  for (; i < n; ++i)
    m = x[i] > m ? x[i] : m;
  return m;
}

}  // namespace retort::losses::detail::RETORT_ISA
