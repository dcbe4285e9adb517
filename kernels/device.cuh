// The dialect of CUDA C++ in which the kernels of this folder are written. It includes nothing:
// NVRTC compiles it without a toolkit's headers, and a C++ compiler behind the emulator
// (tests/kernels), which brings __global__, __shared__, threadIdx, __syncthreads(), the warp's
// shuffles and the functions of mathematics by the same names.
#pragma once

namespace retort::kernels {

using int32 = int;
using int64 = long long;
using uint32 = unsigned int;
using uint64 = unsigned long long;

constexpr int kWarp = 32;
constexpr uint32 kAllLanes = 0xffffffffu;
constexpr int kMaxWarps = 32;  // of a block

// The bits of a bfloat16.
struct Bf16 {
  unsigned short bits;
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bf16 x) { return __uint_as_float(static_cast<uint32>(x.bits) << 16); }

template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
// Rounds to the nearest, ties to even; a NaN stays one.
template <>
__device__ inline Bf16 narrow<Bf16>(float x) {
#ifdef __CUDA_ARCH__
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return Bf16{bits};
#else
  const uint32 bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{0x7fff};
  return Bf16{static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
#endif
}

// 16 bytes of neighbours, which one instruction moves. The address is a multiple of 16.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};

template <class T>
__device__ inline Pack<T> load_pack(const T* address) {
#ifndef __CUDA_ARCH__
  check_alignment(address, sizeof(Pack<T>));
#endif
  return *reinterpret_cast<const Pack<T>*>(address);
}
template <class T>
__device__ inline void store_pack(T* address, const Pack<T>& pack) {
#ifndef __CUDA_ARCH__
  check_alignment(address, sizeof(Pack<T>));
#endif
  *reinterpret_cast<Pack<T>*>(address) = pack;
}

__device__ inline float warp_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

// The sum over a block of whole warps, the same bits in every thread and in every run. `shared` has
// kMaxWarps floats, which may be used again after the next barrier.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  const int warps = blockDim.x / kWarp;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < warps; ++w)
    sum += shared[w];
  return sum;
}

}  // namespace retort::kernels
