// e^x on one float, for loops that the compiler turns into vectors. Private to models/. Nothing of
// the standard library: some of the including files are compiled for wider instruction sets, and
// the linker must not take their copy of a template for everybody's.
#pragma once

#include <stdint.h>

#define RETORT_INLINE inline __attribute__((always_inline))

namespace retort::models {
namespace {

RETORT_INLINE float bit_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// e^x within 2 units in the last place on [-87, 88], clamped outside: x = n ln2 + r, a polynomial
// in r, times 2^n.
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
