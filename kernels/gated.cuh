// K7: y = act(gate) up over n elements, and its gradient from gate and up alone, so that nothing
// else is kept for backward. act is silu(g) = g sigmoid(g) or GELU by its tanh formula, which is
// g sigmoid(z) with z = 2 sqrt(2 / pi) (g + 0.044715 g^3): one function for both.
//
//   dup   = dy g sigmoid(z)
//   dgate = dy up sigmoid(z) (1 + g (1 - sigmoid(z)) z')
//
// All arrays are contiguous and of one dtype; float32 within, rounded once. Outputs may lie where
// inputs do. Launch: any block of at most 512 threads; the grid strides over tiles of blockDim.x *
// 16 (bf16) or 8 (float32) elements, so as many blocks as there are tiles. 16-byte loads
// where all pointers are aligned; what is left of n behind the last pack goes one by one.
//
// H100, 2026-11-26, bf16, [8192, 6144]: 256 threads and a block a tile 2,941 GB/s, backward 2,944
// (64 to 512 threads are within 1 %; 528 or 1,056 blocks 7 % slower; ATen 1,751 and 1,652).
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

enum class GateFunction { kSilu, kGeluTanh };

// sigmoid(z). What is rounded to bf16 takes the quick exponential and 1 / x as rsqrt(x)^2, which is
// one instruction where a division is ten: some 4 units in the last place of float32.
template <class T>
__device__ inline float sigmoid(float z) {
  if constexpr (sizeof(T) == 2) {
    const float root = rsqrtf(1.f + __expf(-z));
    return root * root;
  } else {
    return 1.f / (1.f + expf(-z));
  }
}

constexpr float kGeluSlope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;

template <GateFunction F>
__device__ inline float gate_argument(float g) {
  return F == GateFunction::kSilu ? g : kGeluSlope * (g + kGeluCubic * g * g * g);
}

template <GateFunction F>
__device__ inline float gate_slope(float g) {
  return F == GateFunction::kSilu ? 1.f : kGeluSlope * (1.f + 3.f * kGeluCubic * g * g);
}

template <class T, GateFunction F>
__device__ inline T gated_value(T gate, T up) {
  const float g = widen(gate);
  return narrow<T>(g * sigmoid<T>(gate_argument<F>(g)) * widen(up));
}

template <class T, GateFunction F>
__device__ inline void gated_gradient(T dy, T gate, T up, T& dgate, T& dup) {
  const float g = widen(gate);
  const float gradient = widen(dy);
  const float s = sigmoid<T>(gate_argument<F>(g));
  dup = narrow<T>(gradient * g * s);
  dgate = narrow<T>(gradient * widen(up) * s * (1.f + g * (1.f - s) * gate_slope<F>(g)));
}

constexpr int kGatedFlight = 2;  // packs of each array that a thread loads at once

template <class T, GateFunction F>
__device__ inline void gated(const T* gate, const T* up, T* y, int64 n) {
  constexpr int kSize = Pack<T>::kSize;
  const uint64 addresses =
      reinterpret_cast<uint64>(gate) | reinterpret_cast<uint64>(up) | reinterpret_cast<uint64>(y);
  const int64 packs = (addresses & 15) == 0 ? n / kSize : 0;
  const int64 tile = int64{blockDim.x} * kGatedFlight;
  for (int64 first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile) {
    Pack<T> g[kGatedFlight], u[kGatedFlight];
#pragma unroll
    for (int j = 0; j < kGatedFlight; ++j) {
      const int64 p = first + int64{j} * blockDim.x;
      if (p >= packs) continue;
      g[j] = load_pack(gate + p * kSize);
      u[j] = load_pack(up + p * kSize);
    }
#pragma unroll
    for (int j = 0; j < kGatedFlight; ++j) {
      const int64 p = first + int64{j} * blockDim.x;
      if (p >= packs) continue;
      for (int i = 0; i < kSize; ++i)
        g[j].v[i] = gated_value<T, F>(g[j].v[i], u[j].v[i]);
      store_pack(y + p * kSize, g[j]);
    }
  }

  const int64 thread = int64{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64 i = packs * kSize + thread; i < n; i += int64{gridDim.x} * blockDim.x)
    y[i] = gated_value<T, F>(gate[i], up[i]);
}

template <class T, GateFunction F>
__device__ inline void gated_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup,
                                      int64 n) {
  constexpr int kSize = Pack<T>::kSize;
  const uint64 addresses = reinterpret_cast<uint64>(dy) | reinterpret_cast<uint64>(gate) |
                           reinterpret_cast<uint64>(up) | reinterpret_cast<uint64>(dgate) |
                           reinterpret_cast<uint64>(dup);
  const int64 packs = (addresses & 15) == 0 ? n / kSize : 0;
  const int64 tile = int64{blockDim.x} * kGatedFlight;
  for (int64 first = blockIdx.x * tile + threadIdx.x; first < packs; first += gridDim.x * tile) {
    Pack<T> d[kGatedFlight], g[kGatedFlight], u[kGatedFlight];
#pragma unroll
    for (int j = 0; j < kGatedFlight; ++j) {
      const int64 p = first + int64{j} * blockDim.x;
      if (p >= packs) continue;
      d[j] = load_pack(dy + p * kSize);
      g[j] = load_pack(gate + p * kSize);
      u[j] = load_pack(up + p * kSize);
    }
#pragma unroll
    for (int j = 0; j < kGatedFlight; ++j) {
      const int64 p = first + int64{j} * blockDim.x;
      if (p >= packs) continue;
      for (int i = 0; i < kSize; ++i) {
        T of_gate, of_up;
        gated_gradient<T, F>(d[j].v[i], g[j].v[i], u[j].v[i], of_gate, of_up);
        g[j].v[i] = of_gate;
        u[j].v[i] = of_up;
      }
      store_pack(dgate + p * kSize, g[j]);
      store_pack(dup + p * kSize, u[j]);
    }
  }

  const int64 thread = int64{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64 i = packs * kSize + thread; i < n; i += int64{gridDim.x} * blockDim.x) {
    T of_gate, of_up;
    gated_gradient<T, F>(dy[i], gate[i], up[i], of_gate, of_up);
    dgate[i] = of_gate;
    dup[i] = of_up;
  }
}

}  // namespace retort::kernels

// y [n]; bytes an element in bf16: 6.
extern "C" __global__ void __launch_bounds__(512)
    retort_gated_silu_bf16(const retort::kernels::Bf16* gate, const retort::kernels::Bf16* up,
                           retort::kernels::Bf16* y, long long n) {
  using namespace retort::kernels;
  gated<Bf16, GateFunction::kSilu>(gate, up, y, n);
}

extern "C" __global__ void __launch_bounds__(512)
    retort_gated_gelu_bf16(const retort::kernels::Bf16* gate, const retort::kernels::Bf16* up,
                           retort::kernels::Bf16* y, long long n) {
  using namespace retort::kernels;
  gated<Bf16, GateFunction::kGeluTanh>(gate, up, y, n);
}

extern "C" __global__ void __launch_bounds__(512)
    retort_gated_silu_f32(const float* gate, const float* up, float* y, long long n) {
  using namespace retort::kernels;
  gated<float, GateFunction::kSilu>(gate, up, y, n);
}

extern "C" __global__ void __launch_bounds__(512)
    retort_gated_gelu_f32(const float* gate, const float* up, float* y, long long n) {
  using namespace retort::kernels;
  gated<float, GateFunction::kGeluTanh>(gate, up, y, n);
}

// dgate, dup [n] from dy, gate, up [n]; bytes an element in bf16: 10.
extern "C" __global__ void __launch_bounds__(512)
    retort_gated_silu_backward_bf16(const retort::kernels::Bf16* dy,
                                    const retort::kernels::Bf16* gate,
                                    const retort::kernels::Bf16* up, retort::kernels::Bf16* dgate,
                                    retort::kernels::Bf16* dup, long long n) {
  using namespace retort::kernels;
  gated_backward<Bf16, GateFunction::kSilu>(dy, gate, up, dgate, dup, n);
}

extern "C" __global__ void __launch_bounds__(512)
    retort_gated_gelu_backward_bf16(const retort::kernels::Bf16* dy,
                                    const retort::kernels::Bf16* gate,
                                    const retort::kernels::Bf16* up, retort::kernels::Bf16* dgate,
                                    retort::kernels::Bf16* dup, long long n) {
  using namespace retort::kernels;
  gated_backward<Bf16, GateFunction::kGeluTanh>(dy, gate, up, dgate, dup, n);
}

extern "C" __global__ void __launch_bounds__(512)
    retort_gated_silu_backward_f32(const float* dy, const float* gate, const float* up,
                                   float* dgate, float* dup, long long n) {
  using namespace retort::kernels;
  gated_backward<float, GateFunction::kSilu>(dy, gate, up, dgate, dup, n);
}

extern "C" __global__ void __launch_bounds__(512)
    retort_gated_gelu_backward_f32(const float* dy, const float* gate, const float* up,
                                   float* dgate, float* dup, long long n) {
  using namespace retort::kernels;
  gated_backward<float, GateFunction::kGeluTanh>(dy, gate, up, dgate, dup, n);
}
