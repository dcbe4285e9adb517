// The words of CUDA C++ that kernels/*.cuh use, for the C++ compiler. The sources stand in a
// namespace inside retort::emulator, where these names are found (tests/kernels/emulate_kernels.py
// writes such a file).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>

#include "tests/kernels/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __shared__ static

namespace retort::emulator {

// Set before a thread goes on. Every meeting is a call that the compiler does not see into, so it
// reads them anew.
extern Dim3 threadIdx, blockIdx, blockDim, gridDim;

using Place = std::source_location;

inline void __syncthreads(Place where = Place::current()) {
  Emulator::meet({.meeting = Meeting::kBlockBarrier, .where = where});
}
inline void __syncwarp(unsigned lanes = 0xffffffffu, Place where = Place::current()) {
  Emulator::meet({.meeting = Meeting::kWarpBarrier, .lanes = lanes, .where = where});
}

template <class T>
T shuffle(unsigned lanes, T value, int source, Place where) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Emulator::meet({.meeting = Meeting::kShuffle,
                         .lanes = lanes,
                         .value = bits,
                         .source = source,
                         .where = where});
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
// Lanes count within groups of `width`, a power of two. One that would look outside its group gets
// its own value.
template <class T>
T __shfl_sync(unsigned lanes, T value, int source, int width = 32, Place where = Place::current()) {
  const int begin = Emulator::lane() & ~(width - 1);
  return shuffle(lanes, value, begin | (source & (width - 1)), where);
}
template <class T>
T __shfl_up_sync(unsigned lanes, T value, unsigned by, int width = 32,
                 Place where = Place::current()) {
  const int lane = Emulator::lane();
  const int source = lane - static_cast<int>(by);
  return shuffle(lanes, value, source < (lane & ~(width - 1)) ? lane : source, where);
}
template <class T>
T __shfl_down_sync(unsigned lanes, T value, unsigned by, int width = 32,
                   Place where = Place::current()) {
  const int lane = Emulator::lane();
  const int source = lane + static_cast<int>(by);
  return shuffle(lanes, value, source > (lane | (width - 1)) ? lane : source, where);
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int by, int width = 32, Place where = Place::current()) {
  const int lane = Emulator::lane();
  const int source = lane ^ by;
  return shuffle(lanes, value, source > (lane | (width - 1)) ? lane : source, where);
}
inline unsigned __ballot_sync(unsigned lanes, bool holds, Place where = Place::current()) {
  return static_cast<unsigned>(Emulator::meet(
      {.meeting = Meeting::kBallot, .lanes = lanes, .value = holds, .where = where}));
}
inline bool __any_sync(unsigned lanes, bool holds, Place where = Place::current()) {
  return __ballot_sync(lanes, holds, where) != 0;
}
inline bool __all_sync(unsigned lanes, bool holds, Place where = Place::current()) {
  return __ballot_sync(lanes, !holds, where) == 0;
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }

// A device's own are less exact by a few units in the last place.
inline float __expf(float x) { return ::expf(x); }
inline float __logf(float x) { return ::logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
template <class T>
T __ldg(const T* address) {
  return *address;
}

// Of integers: a sum of floats would depend on the order.
template <class T>
T atomicAdd(T* address, std::type_identity_t<T> x) {
  static_assert(std::is_integral_v<T>);
  const T before = *address;
  *address = static_cast<T>(before + x);
  return before;
}

// Rounded by itself, in no other operation: this file's code must not be contracted either.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }

// Follows the declaration of each shared array: overwrites it for the first thread of a block.
template <class T>
void begin_shared(T& array) {
  Emulator::begin_shared(&array, sizeof(array));
}
inline void* dynamic_shared() { return Emulator::dynamic_shared(); }
// What kernels/device.cuh asks for.
inline void check_alignment(const void* address, std::size_t alignment) {
  Emulator::check_alignment(address, alignment);
}

}  // namespace retort::emulator
