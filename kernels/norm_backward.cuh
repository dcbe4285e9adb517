// K5, backward: the gradient of an RMS norm (norm.cuh), joined with that of the residual stream.
//
//   u = (w + offset) dy; c = rstd^2 mean(u s); dx = round(dsum + rstd (u - s c))
//   dw = sum over rows of dy s rstd, float32, in two stages
//
// Layout: dy, s, dsum, dx [rows, width] contiguous and w [width], all of one dtype; rstd [rows]
// float32. Sums are float32; the offset is 0, or 1 for Gemma. Rows over threads: norm_rows.cuh.
#pragma once

#include "kernels/norm_rows.cuh"

namespace retort::kernels {

template <class T>
struct RmsNormBackward {
  const T* dy;
  const T* s;
  const T* weight;
  const float* rstd;
  const T* dsum;  // null: none
  T* dx;
  float* dw;  // [gridDim.x * blockDim.x / threads, width], null: not wanted
  int64 rows;
  int64 width;
  float offset;
  int threads;
};

// The columns of a thread, whose part of dw stays in registers over all its rows, by packs.
template <class T>
constexpr int kNormColumns = sizeof(T) == 2 ? 8 : 16;

template <class T>
__device__ inline void rms_norm_backward_packed(const RmsNormBackward<T>& c, float* shared) {
  constexpr int kSize = Pack<T>::kSize;
  constexpr int kHeld = kNormColumns<T> / kSize;
  const int lane = static_cast<int>(threadIdx.x) % c.threads;
  const int group = static_cast<int>(threadIdx.x) / c.threads;
  const int64 groups = blockDim.x / c.threads;
  const int packs = static_cast<int>(c.width / kSize);

  Pack<T> weight[kHeld];
  float dw[kHeld][kSize];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (lane + j * c.threads < packs)
      weight[j] = load_pack(c.weight + (lane + j * c.threads) * kSize);
    for (int i = 0; i < kSize; ++i)
      dw[j][i] = 0;
  }

  int turn = 0;
  for (int64 base = blockIdx.x * groups; base < c.rows; base += gridDim.x * groups) {
    const int64 row = base + group;
    const bool active = row < c.rows;
    const int64 begin = row * c.width;

    // The thread begins all its loads first, so that they are in flight together, and then forms
    // its part of the row's product.
    Pack<T> dy[kHeld], s[kHeld], dsum[kHeld];
    float rstd = 0;
    float product = 0;
    if (active) {
      rstd = c.rstd[row];
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        if (lane + j * c.threads >= packs) continue;
        const int64 at = begin + (lane + j * c.threads) * kSize;
        dy[j] = load_pack(c.dy + at);
        s[j] = load_pack(c.s + at);
        if (c.dsum != nullptr) dsum[j] = load_pack(c.dsum + at);
      }
#pragma unroll
      for (int j = 0; j < kHeld; ++j) {
        if (lane + j * c.threads >= packs) continue;
        for (int i = 0; i < kSize; ++i)
          product += (widen(weight[j].v[i]) + c.offset) * widen(dy[j].v[i]) * widen(s[j].v[i]);
      }
    }

    // Rows use the two halves of `shared` by turns, so that one barrier a row is enough.
    const float total = row_sum(product, c.threads, shared + turn * kMaxWarps);
    turn ^= 1;
    if (!active) continue;
    const float mean = rstd * rstd * (total / static_cast<float>(c.width));
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (lane + j * c.threads >= packs) continue;
      Pack<T> dx;
      for (int i = 0; i < kSize; ++i) {
        const float gradient = widen(dy[j].v[i]);
        const float x = widen(s[j].v[i]);
        const float extra = c.dsum != nullptr ? widen(dsum[j].v[i]) : 0.f;
        const float u = (widen(weight[j].v[i]) + c.offset) * gradient;
        dx.v[i] = narrow<T>(extra + rstd * (u - x * mean));
        dw[j][i] += gradient * x * rstd;
      }
      store_pack(c.dx + begin + (lane + j * c.threads) * kSize, dx);
    }
  }

  if (c.dw == nullptr) return;
  float* partial = c.dw + (blockIdx.x * groups + group) * c.width;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (lane + j * c.threads >= packs) continue;
    for (int i = 0; i < kSize; i += Pack<float>::kSize) {
      Pack<float> part;
      for (int k = 0; k < Pack<float>::kSize; ++k)
        part.v[k] = dw[j][i + k];
      store_pack(partial + (lane + j * c.threads) * kSize + i, part);
    }
  }
}

// Element by element; a thread's part of dw lies where it is written, in the cache.
template <class T>
__device__ inline void rms_norm_backward_single(const RmsNormBackward<T>& c, float* shared) {
  const int lane = static_cast<int>(threadIdx.x) % c.threads;
  const int group = static_cast<int>(threadIdx.x) / c.threads;
  const int64 groups = blockDim.x / c.threads;
  float* partial = c.dw + (blockIdx.x * groups + group) * c.width;
#pragma unroll 1
  for (int64 i = lane; c.dw != nullptr && i < c.width; i += c.threads)
    partial[i] = 0;

  int turn = 0;
  for (int64 base = blockIdx.x * groups; base < c.rows; base += gridDim.x * groups) {
    const int64 row = base + group;
    const bool active = row < c.rows;
    const T* dy = c.dy + row * c.width;
    const T* s = c.s + row * c.width;
    float product = 0;
#pragma unroll 2
    for (int64 i = lane; active && i < c.width; i += c.threads)
      product += (widen(c.weight[i]) + c.offset) * widen(dy[i]) * widen(s[i]);

    const float total = row_sum(product, c.threads, shared + turn * kMaxWarps);
    turn ^= 1;
    if (!active) continue;
    const float rstd = c.rstd[row];
    const float mean = rstd * rstd * (total / static_cast<float>(c.width));
    const T* dsum = c.dsum + row * c.width;
    T* dx = c.dx + row * c.width;
#pragma unroll 1
    for (int64 i = lane; i < c.width; i += c.threads) {
      const float gradient = widen(dy[i]);
      const float x = widen(s[i]);
      const float extra = c.dsum != nullptr ? widen(dsum[i]) : 0.f;
      const float u = (widen(c.weight[i]) + c.offset) * gradient;
      dx[i] = narrow<T>(extra + rstd * (u - x * mean));
      if (c.dw != nullptr) partial[i] += gradient * x * rstd;
    }
  }
}

template <class T>
__device__ inline void rms_norm_backward(const RmsNormBackward<T>& c) {
  __shared__ float shared[2 * kMaxWarps];
  if (c.width % Pack<T>::kSize == 0 && packs_aligned(c.dy, c.s, c.weight, c.dsum, c.dx, c.dw)) {
    rms_norm_backward_packed(c, shared);
  } else {
    rms_norm_backward_single(c, shared);
  }
}

// out[i] = (accumulate ? out[i] : 0) + sum over rows of partial[row, i]. A warp reads 32
// neighbouring columns of every blockDim.x / 32-th row; the warps' sums are added in their order.
template <class T>
__device__ inline void column_sum(const float* partial, T* out, int rows, int64 width,
                                  bool accumulate) {
  __shared__ float shared[kMaxWarps * kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  constexpr int kFlight = 8;  // loads at once
  for (int64 first = int64{blockIdx.x} * kWarp; first < width; first += int64{gridDim.x} * kWarp) {
    const int64 column = first + lane;
    float sum = 0;
    for (int row = warp; column < width && row < rows; row += kFlight * warps) {
      float part[kFlight];
#pragma unroll
      for (int j = 0; j < kFlight; ++j)
        part[j] = row + j * warps < rows ? partial[(row + j * warps) * width + column] : 0.f;
#pragma unroll
      for (int j = 0; j < kFlight; ++j)
        sum += part[j];
    }
    shared[warp * kWarp + lane] = sum;
    __syncthreads();
    if (warp == 0 && column < width) {
      float total = accumulate ? widen(out[column]) : 0.f;
      for (int w = 0; w < warps; ++w)
        total += shared[w * kWarp + lane];
      out[column] = narrow<T>(total);
    }
    __syncthreads();
  }
}

}  // namespace retort::kernels

// dx [rows, width] and dw [gridDim.x * blockDim.x / threads, width], which retort_column_sum adds
// up: all of it is written, also without rows. `dx` may be dy or dsum. Bytes a row in bf16: 8 H
// with dsum, and 4 H a row of dw written and read.
// Launch: where packs are used 8 * threads >= width (bf16) or 16 * threads >= width (float32, in
// blocks of at most 512) is required, so width <= 8192. Few blocks, 2 to 8 a multiprocessor: a row
// of dw costs as much as half a row of the rest. The bits of dw are those of the launch's shape.
// H100, 2026-11-26, bf16, with dsum, [8192, 2048]: 256 threads a row and a block, 528 blocks 2,661
// GB/s, with the column sum 2,388 (ATen 1,171); [8192, 1024]: 128, 128 and 1,056 2,338 and 1,926.
extern "C" __global__ void __launch_bounds__(1024, 1)
    retort_rms_norm_backward_bf16(const retort::kernels::Bf16* dy, const retort::kernels::Bf16* s,
                                  const retort::kernels::Bf16* weight, const float* rstd,
                                  const retort::kernels::Bf16* dsum, retort::kernels::Bf16* dx,
                                  float* dw, long long rows, long long width, float offset,
                                  int threads) {
  retort::kernels::rms_norm_backward<retort::kernels::Bf16>(
      {dy, s, weight, rstd, dsum, dx, dw, rows, width, offset, threads});
}

extern "C" __global__ void __launch_bounds__(512, 1)
    retort_rms_norm_backward_f32(const float* dy, const float* s, const float* weight,
                                 const float* rstd, const float* dsum, float* dx, float* dw,
                                 long long rows, long long width, float offset, int threads) {
  retort::kernels::rms_norm_backward<float>(
      {dy, s, weight, rstd, dsum, dx, dw, rows, width, offset, threads});
}

// The second stage of dw: out [width] = (accumulate ? out : 0) + the sum of the rows of `partial`
// [rows, width] float32. Launch: a block for 32 columns, of 256 to 1024 threads, 512 is best; any
// alignment. H100, 2026-11-26, [528, 2048]: 6.2 us.
extern "C" __global__ void __launch_bounds__(1024, 1)
    retort_column_sum_bf16(const float* partial, retort::kernels::Bf16* out, int rows,
                           long long width, int accumulate) {
  retort::kernels::column_sum(partial, out, rows, width, accumulate != 0);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    retort_column_sum_f32(const float* partial, float* out, int rows, long long width,
                          int accumulate) {
  retort::kernels::column_sum(partial, out, rows, width, accumulate != 0);
}
