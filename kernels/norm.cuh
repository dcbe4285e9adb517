// K5: RMS norm of rows, with the sum of the residual stream before it. Bound by memory: what a row
// is read for once stays in registers.
//
//   s = round(a + b); rstd = 1 / sqrt(mean(s^2) + eps); y = round(s rstd (w + offset))
//
// Layout: a, b, s, y [rows, width] contiguous and w [width], all of one dtype; rstd [rows] float32.
// Sums are float32; the offset is 0, or 1 for Gemma. Rows over threads: norm_rows.cuh.
#pragma once

#include "kernels/norm_rows.cuh"

namespace retort::kernels {

template <class T>
struct AddRmsNorm {
  const T* a;
  const T* b;  // null: the sum is a, and not written
  const T* weight;
  T* sum;
  T* y;
  float* rstd;  // null: not wanted
  int64 rows;
  int64 width;
  float eps;
  float offset;  // added to the weight
  int threads;   // of a row
};

// round(a + b).
template <class T>
__device__ inline Pack<T> pack_sum(const Pack<T>& a, const Pack<T>& b) {
  Pack<T> sum;
  for (int i = 0; i < Pack<T>::kSize; ++i)
    sum.v[i] = narrow<T>(widen(a.v[i]) + widen(b.v[i]));
  return sum;
}

template <class T>
__device__ inline float sum_of_squares(const Pack<T>& x) {
  float sum = 0;
  for (int i = 0; i < Pack<T>::kSize; ++i)
    sum += widen(x.v[i]) * widen(x.v[i]);
  return sum;
}

template <class T>
__device__ inline Pack<T> scaled(const Pack<T>& x, const Pack<T>& weight, float offset,
                                 float rstd) {
  Pack<T> y;
  for (int i = 0; i < Pack<T>::kSize; ++i)
    y.v[i] = narrow<T>(widen(x.v[i]) * rstd * (widen(weight.v[i]) + offset));
  return y;
}

// A thread keeps kHeld packs of the row and of the weight in registers. What is wider is written
// and read again: it lies in the cache.
template <class T>
__device__ inline void add_rms_norm_packed(const AddRmsNorm<T>& c, float* shared) {
  constexpr int kHeld = 2;
  constexpr int kSize = Pack<T>::kSize;
  const int lane = static_cast<int>(threadIdx.x) % c.threads;
  const int group = static_cast<int>(threadIdx.x) / c.threads;
  const int64 groups = blockDim.x / c.threads;
  const int packs = static_cast<int>(c.width / kSize);

  Pack<T> weight[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (lane + j * c.threads < packs)
      weight[j] = load_pack(c.weight + (lane + j * c.threads) * kSize);

  int turn = 0;
  for (int64 base = blockIdx.x * groups; base < c.rows; base += gridDim.x * groups) {
    const int64 row = base + group;
    const bool active = row < c.rows;
    const T* a = c.a + row * c.width;
    const T* b = c.b + row * c.width;
    T* sum = c.sum + row * c.width;

    // The thread begins all its loads before it computes, so that they are in flight together.
    Pack<T> s[kHeld];
    float squares = 0;
    if (active) {
#pragma unroll
      for (int j = 0; j < kHeld; ++j)
        if (lane + j * c.threads < packs) s[j] = load_pack(a + (lane + j * c.threads) * kSize);
      if (c.b != nullptr) {
        Pack<T> added[kHeld];
#pragma unroll
        for (int j = 0; j < kHeld; ++j)
          if (lane + j * c.threads < packs)
            added[j] = load_pack(b + (lane + j * c.threads) * kSize);
#pragma unroll
        for (int j = 0; j < kHeld; ++j) {
          if (lane + j * c.threads >= packs) continue;
          s[j] = pack_sum(s[j], added[j]);
          store_pack(sum + (lane + j * c.threads) * kSize, s[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kHeld; ++j)
        if (lane + j * c.threads < packs) squares += sum_of_squares(s[j]);
#pragma unroll 1
      for (int p = lane + kHeld * c.threads; p < packs; p += c.threads) {
        Pack<T> more = load_pack(a + p * kSize);
        if (c.b != nullptr) {
          more = pack_sum(more, load_pack(b + p * kSize));
          store_pack(sum + p * kSize, more);
        }
        squares += sum_of_squares(more);
      }
    }

    // Rows use the two halves of `shared` by turns, so that one barrier a row is enough.
    const float total = row_sum(squares, c.threads, shared + turn * kMaxWarps);
    turn ^= 1;
    if (!active) continue;
    const float rstd = rsqrtf(total / static_cast<float>(c.width) + c.eps);
    if (lane == 0 && c.rstd != nullptr) c.rstd[row] = rstd;
    T* y = c.y + row * c.width;
#pragma unroll
    for (int j = 0; j < kHeld; ++j)
      if (lane + j * c.threads < packs)
        store_pack(y + (lane + j * c.threads) * kSize, scaled(s[j], weight[j], c.offset, rstd));
    const T* again = c.b != nullptr ? sum : a;
#pragma unroll 1
    for (int p = lane + kHeld * c.threads; p < packs; p += c.threads)
      store_pack(y + p * kSize, scaled(load_pack(again + p * kSize),
                                       load_pack(c.weight + p * kSize), c.offset, rstd));
  }
}

// Element by element, for widths and addresses that packs do not fit.
template <class T>
__device__ inline void add_rms_norm_single(const AddRmsNorm<T>& c, float* shared) {
  const int lane = static_cast<int>(threadIdx.x) % c.threads;
  const int group = static_cast<int>(threadIdx.x) / c.threads;
  const int64 groups = blockDim.x / c.threads;
  int turn = 0;
  for (int64 base = blockIdx.x * groups; base < c.rows; base += gridDim.x * groups) {
    const int64 row = base + group;
    const bool active = row < c.rows;
    const T* a = c.a + row * c.width;
    const T* b = c.b + row * c.width;
    T* sum = c.sum + row * c.width;
    float squares = 0;
#pragma unroll 2
    for (int64 i = lane; active && i < c.width; i += c.threads) {
      T s = a[i];
      if (c.b != nullptr) {
        s = narrow<T>(widen(s) + widen(b[i]));
        sum[i] = s;
      }
      squares += widen(s) * widen(s);
    }

    const float total = row_sum(squares, c.threads, shared + turn * kMaxWarps);
    turn ^= 1;
    if (!active) continue;
    const float rstd = rsqrtf(total / static_cast<float>(c.width) + c.eps);
    if (lane == 0 && c.rstd != nullptr) c.rstd[row] = rstd;
    T* y = c.y + row * c.width;
    const T* again = c.b != nullptr ? sum : a;
#pragma unroll 2
    for (int64 i = lane; i < c.width; i += c.threads)
      y[i] = narrow<T>(widen(again[i]) * rstd * (widen(c.weight[i]) + c.offset));
  }
}

template <class T>
__device__ inline void add_rms_norm(const AddRmsNorm<T>& c) {
  __shared__ float shared[2 * kMaxWarps];
  if (c.width % Pack<T>::kSize == 0 && packs_aligned(c.a, c.b, c.weight, c.sum, c.y)) {
    add_rms_norm_packed(c, shared);
  } else {
    add_rms_norm_single(c, shared);
  }
}

}  // namespace retort::kernels

// y and rstd of a, or of s = a + b, which is written. `sum` may be a, or b: a thread has read what
// it writes. Bytes a row of width H in bf16: 8 H, without b 4 H.
// Launch: `threads` about width / 16 (bf16) or width / 8, rounded up to 32; blocks of 128 to 512;
// a grid of rows / (rows of a block), or less. H100, 2026-11-26, bf16, with b: [8192, 2048] 128
// threads a row and a block 2,461 GB/s, [8192, 1024] 64 and 64 2,275 (larger blocks 5 to 20 % less;
// ATen's sum and norm 2,060 and 1,964).
extern "C" __global__ void __launch_bounds__(512, 1)
    retort_add_rms_norm_bf16(const retort::kernels::Bf16* a, const retort::kernels::Bf16* b,
                             const retort::kernels::Bf16* weight, retort::kernels::Bf16* sum,
                             retort::kernels::Bf16* y, float* rstd, long long rows, long long width,
                             float eps, float offset, int threads) {
  retort::kernels::add_rms_norm<retort::kernels::Bf16>(
      {a, b, weight, sum, y, rstd, rows, width, eps, offset, threads});
}

extern "C" __global__ void __launch_bounds__(512, 1)
    retort_add_rms_norm_f32(const float* a, const float* b, const float* weight, float* sum,
                            float* y, float* rstd, long long rows, long long width, float eps,
                            float offset, int threads) {
  retort::kernels::add_rms_norm<float>(
      {a, b, weight, sum, y, rstd, rows, width, eps, offset, threads});
}
