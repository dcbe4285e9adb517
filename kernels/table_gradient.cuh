// The gradient of a table that rows were looked up in.
//
//   main_grad[id] += scale * (the sum of dh[r] over the r with ids[r] == id, in the order given)
//
// Shapes: sorted_ids [R] ascending and permutation [R] (where a sorted id stood), int64 or int32,
//   as a stable sort gives them; dh [R, width] bf16 or float32; main_grad [num_rows, width]
//   float32. An id outside [0, num_rows) adds nothing: padding, or another rank's row.
// Launch: grid (R, ceil(width / (32 * 16 / sizeof(T)))), 32 to 256 threads, whole warps. The block
//   of the first of equal ids sums them all, the others end at once: the host need not know how
//   many different ids there are. Its warps have the same columns and take 4 rows each by turns, so
//   that a frequent id is the work of all of them.
//   H100, 2026-11-26, when one warp took all rows of an id: 8192 x 2048 of 4,805 ids 415 us = 271
//   GB/s (ATen's index_add 176 us). Not measured since.
// Bytes: sizeof(T) * R * width and 8 * width for each different id. Alignment: 16-byte loads where
//   dh, main_grad and width allow them.
// Order: fixed by the number of warps, so the bits are the same in every run.
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

constexpr int kGradientUnroll = 4;  // rows that a thread has in flight
constexpr int kMaxGradientWarps = 8;

// A thread's columns of dh.
template <class T>
struct GradientColumns {
  const T* dh;
  int64 width;
  int64 first;
  int count;  // 0: none
  bool aligned;

  __device__ Pack<T> load(int64 row) const {
    const T* from = dh + row * width + first;
    if (aligned && count > 0) return load_pack(from);
    Pack<T> pack;
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j)
      pack.v[j] = j < count ? from[j] : T{};
    return pack;
  }
};

// Adds the rows of `id` from `begin` on, kGradientUnroll in each step.
template <class T, class Index>
__device__ inline void add_rows(const GradientColumns<T>& columns, const Index* sorted_ids,
                                const Index* permutation, Index id, int64 begin, int64 step,
                                int64 rows, float (&sums)[Pack<T>::kSize]) {
  for (; begin < rows && sorted_ids[begin] == id; begin += step) {
    // A row past the segment's end is its first one again, and is not added.
    bool mine[kGradientUnroll];
    Pack<T> packs[kGradientUnroll];
#pragma unroll
    for (int u = 0; u < kGradientUnroll; ++u) {
      mine[u] = begin + u < rows && sorted_ids[begin + u] == id;
      packs[u] = columns.load(static_cast<int64>(permutation[mine[u] ? begin + u : begin]));
    }
#pragma unroll
    for (int u = 0; u < kGradientUnroll; ++u)
      if (mine[u]) {
#pragma unroll
        for (int j = 0; j < Pack<T>::kSize; ++j)
          sums[j] += widen(packs[u].v[j]);
      }
  }
}

template <class T, class Index>
__device__ inline void table_gradient(const T* dh, const Index* sorted_ids,
                                      const Index* permutation, float* main_grad, int64 rows,
                                      int64 width, int64 num_rows, float scale) {
  constexpr int kSize = Pack<T>::kSize;
  __shared__ float partial[kMaxGradientWarps][kSize][kWarp];
  const int64 first = blockIdx.x;
  const Index id = sorted_ids[first];
  // Only the block of the first of equal ids goes on, and none for an id outside of the table.
  if (id < 0 || id >= num_rows || (first > 0 && sorted_ids[first - 1] == id)) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64 other = first + kGradientUnroll;  // the first row of another warp
  // The few rows of a rare id are the work of one warp; the others would only wait for it.
  const bool shared = warps > 1 && other < rows && sorted_ids[other] == id;
  if (warp > 0 && !shared) return;

  const int64 column = (static_cast<int64>(blockIdx.y) * kWarp + lane) * kSize;
  const int64 left = width - column;
  const int count = left >= kSize ? kSize : (left > 0 ? static_cast<int>(left) : 0);
  const bool aligned = width % kSize == 0 && reinterpret_cast<uint64>(dh) % 16 == 0 &&
                       reinterpret_cast<uint64>(main_grad) % 16 == 0;
  float sums[kSize] = {};
  add_rows<T, Index>({dh, width, column, count, aligned}, sorted_ids, permutation, id,
                     first + int64{warp} * kGradientUnroll, int64{warps} * kGradientUnroll, rows,
                     sums);
  if (shared) {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      partial[warp][j][lane] = sums[j];
    __syncthreads();
    // The sums are added in the order of the warps, so that the bits are the same in every run.
    if (warp > 0) return;
#pragma unroll 1
    for (int w = 1; w < warps; ++w)
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        sums[j] += partial[w][j][lane];
  }
  if (count == 0) return;

  float* out = main_grad + static_cast<int64>(id) * width + column;
  if (aligned) {
#pragma unroll
    for (int j = 0; j < kSize; j += 4) {
      Pack<float> pack = load_pack(out + j);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pack.v[i] += scale * sums[j + i];
      store_pack(out + j, pack);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      if (j < count) out[j] += scale * sums[j];
  }
}

}  // namespace retort::kernels

#define RETORT_TABLE_GRADIENT(NAME, T, INDEX)                                                      \
  extern "C" __global__ void __launch_bounds__(256, 4) retort_table_gradient_##NAME(               \
      const T* dh, const INDEX* sorted_ids, const INDEX* permutation, float* main_grad,            \
      long long rows, long long width, long long num_rows, float scale) {                          \
    retort::kernels::table_gradient<T, INDEX>(dh, sorted_ids, permutation, main_grad, rows, width, \
                                              num_rows, scale);                                    \
  }

RETORT_TABLE_GRADIENT(bf16_i64, retort::kernels::Bf16, long long)
RETORT_TABLE_GRADIENT(bf16_i32, retort::kernels::Bf16, int)
RETORT_TABLE_GRADIENT(f32_i64, float, long long)
RETORT_TABLE_GRADIENT(f32_i32, float, int)

#undef RETORT_TABLE_GRADIENT
