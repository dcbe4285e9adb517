// How the rows of a norm lie over threads.
//
// `threads` (a multiple of 32 that divides blockDim.x) work on a row, a block on blockDim.x /
// threads rows at a time, and the grid strides over the rows. Any width is right; 16-byte loads are
// used where width is a multiple of 8 (bf16) or 4 (float32) and all pointers are aligned.
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

// True if all pointers (a null one is) may be read by packs of 16 bytes.
template <class... P>
__device__ inline bool packs_aligned(const P*... pointers) {
  return ((reinterpret_cast<uint64>(pointers) | ...) & 15) == 0;
}

// The sum over the `threads` of one row, the same bits in each of them. All threads of the block
// call it, with `shared` of kMaxWarps floats that the call before the last one may have used.
__device__ inline float row_sum(float x, int threads, float* shared) {
  x = warp_sum(x);
  if (threads == kWarp) return x;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarp == 0) shared[thread / kWarp] = x;
  __syncthreads();
  const int warps = threads / kWarp;
  const float* first = shared + thread / threads * warps;
  float sum = 0;
#pragma unroll 4
  for (int w = 0; w < warps; ++w)
    sum += first[w];
  return sum;
}

}  // namespace retort::kernels
