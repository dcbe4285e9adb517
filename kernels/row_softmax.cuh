// What the kernels of the losses share: the pieces in which a block walks over a row of float32
// logits, the statistics of its softmax in one reading, and how a gradient takes the row's place.
//
// Pieces: a block takes kPieceFours * blockDim.x fours (four neighbours, 16 bytes) at once; thread
//   t has the fours t, t + blockDim.x, .. of a piece, so that each of its kPieceFours loads is
//   coalesced and all of them are in flight together.
// Alignment: rows of a width that 4 divides, from a base that 16 divides, move by 16 bytes; all
//   others by elements, where only speed is lost.
// Numbers: elements are float32; sums of 4 are float32, all beyond that double, in a fixed order.
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

constexpr int32 kPieceFours = 4;        // of a thread
constexpr float kLogSmallest = -64.0f;  // probabilities below e^-64 of the largest are 0
constexpr int32 kNoColumn = 0x7fffffff;

__device__ inline bool on_16_bytes(const float* address) {
  return (reinterpret_cast<uint64>(address) & 15) == 0;
}

__device__ inline float minus_infinity() { return __uint_as_float(0xff800000u); }

struct Piece {
  Pack<float> four[kPieceFours];
};

// These count the fours and the pieces of a row's `width` columns, in pieces of this block.
__device__ inline int32 piece_fours() { return kPieceFours * static_cast<int32>(blockDim.x); }
__device__ inline int32 fours_of(int32 width) { return width / 4 + (width % 4 != 0); }
__device__ inline int32 pieces_of(int32 width) {
  return (fours_of(width) + piece_fours() - 1) / piece_fours();
}
// The first column of this thread's `c`th four of a piece.
__device__ inline int32 column_of(int32 piece, int32 c) {
  return 4 * (piece * piece_fours() + c * static_cast<int32>(blockDim.x) +
              static_cast<int32>(threadIdx.x));
}

__device__ inline Pack<float> load_elements(const float* row, int32 column, int32 end) {
  Pack<float> x;
#pragma unroll
  for (int32 i = 0; i < 4; ++i)
    x.v[i] = column + i < end ? row[column + i] : minus_infinity();
  return x;
}

// Columns from `end` on are -inf: no softmax has them. `aligned`: the row's place and width fit
// 16-byte loads.
__device__ inline Piece load_piece(const float* row, int32 piece, int32 end, bool aligned) {
  Piece x;
  if (aligned && (piece + 1) * piece_fours() <= end / 4) {
#pragma unroll
    for (int32 c = 0; c < kPieceFours; ++c)
      x.four[c] = load_pack(row + column_of(piece, c));
    return x;
  }
#pragma unroll
  for (int32 c = 0; c < kPieceFours; ++c) {
    const int32 column = column_of(piece, c);
    if (aligned && column + 4 <= end)
      x.four[c] = load_pack(row + column);
    else
      x.four[c] = load_elements(row, column, end);
  }
  return x;
}

// 8 bytes of neighbours.
struct alignas(8) FourBf16 {
  Bf16 v[4];
};

template <bool kAligned>
__device__ inline void store_four(float* row, int32 column, int32 end, const Pack<float>& x) {
  if (kAligned && column + 4 <= end) return store_pack(row + column, x);
#pragma unroll
  for (int32 i = 0; i < 4; ++i)
    if (column + i < end) row[column + i] = x.v[i];
}
template <bool kAligned>
__device__ inline void store_four(Bf16* row, int32 column, int32 end, const Pack<float>& x) {
  FourBf16 y;
#pragma unroll
  for (int32 i = 0; i < 4; ++i)
    y.v[i] = narrow<Bf16>(x.v[i]);
  if (kAligned && column + 4 <= end) {
    *reinterpret_cast<FourBf16*>(row + column) = y;
    return;
  }
#pragma unroll
  for (int32 i = 0; i < 4; ++i)
    if (column + i < end) row[column + i] = y.v[i];
}

__device__ inline float exp2_approximate(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// e^x of a shifted logit; 0 below e^-64, NaN stays NaN. Its error is that of x: |x| half ulps and
// two more, in four instructions.
__device__ inline float exp_shifted(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  const float e = exp2_approximate(x * kLog2E);
  return x < kLogSmallest ? 0.0f : e;
}
// Returns what logits are shifted by: a row without any finite one is not shifted.
__device__ inline float shift_of(float max) { return max == minus_infinity() ? 0.0f : max; }

__device__ inline float top_of(const Piece& piece) {
  float top = minus_infinity();
#pragma unroll
  for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
    for (int32 i = 0; i < 4; ++i)
      top = fmaxf(top, piece.four[c].v[i]);
  return top;
}

// A thread's part of a softmax, and after join() the block's: maximum, the first column that has it
// (kNoColumn without columns), the sums of e and x e with x = (logit - max) scale and e = exp(x).
struct Softmax {
  float max = minus_infinity();
  int32 first = kNoColumn;
  double sum = 0;
  double moment = 0;

  // A larger maximum, by which all that has been summed shrinks. What was nothing stays so, and a
  // NaN is never lost.
  __device__ void raise(float to, float scale) {
    if (sum != 0) {
      const float by = (max - to) * scale;
      const float factor = exp_shifted(by);
      if (factor == 0) {
        sum *= 0;
        moment = sum;
      } else {
        moment = (moment + sum * by) * factor;
        sum *= factor;
      }
    }
    max = to;
  }

  // A column by itself, in any order; its place is not looked at.
  __device__ void add(float value, float scale) {
    if (value > max) raise(value, scale);
    sum += static_cast<double>(exp_shifted((value - shift_of(max)) * scale));
  }

  // Pieces come in descending order, so that a maximum as large as an earlier one stands before it.
  template <bool kMoment>
  __device__ void add(const Piece& piece, int32 index, float scale) {
    const float top = top_of(piece);
    if (top >= max) {
      raise(top, scale);
#pragma unroll
      for (int32 c = kPieceFours - 1; c >= 0; --c)
#pragma unroll
        for (int32 i = 3; i >= 0; --i)
          if (piece.four[c].v[i] == top) first = column_of(index, c) + i;
    }

    // Four sums side by side, of kPieceFours each.
    const float shift = shift_of(max);
    float e_sum[4] = {};
    float xe_sum[4] = {};
#pragma unroll
    for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
      for (int32 i = 0; i < 4; ++i) {
        const float x = (piece.four[c].v[i] - shift) * scale;
        const float e = exp_shifted(x);
        e_sum[i] += e;
        if (kMoment) xe_sum[i] += fmaxf(x, 2 * kLogSmallest) * e;  // x may be -inf
      }
    sum += static_cast<double>((e_sum[0] + e_sum[1]) + (e_sum[2] + e_sum[3]));
    if (kMoment) moment += static_cast<double>((xe_sum[0] + xe_sum[1]) + (xe_sum[2] + xe_sum[3]));
  }
};

__device__ inline double warp_sum(double x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// The sum over a block of whole warps, the same bits in every thread. `shared` has kMaxWarps
// numbers, which may be used again after the next barrier.
__device__ inline double block_sum(double x, double* shared) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w)
    sum += shared[w];
  return sum;
}
__device__ inline float block_max(float x, float* shared) {
  x = warp_max(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float max = shared[0];
  for (int w = 1; w < static_cast<int>(blockDim.x) / kWarp; ++w)
    max = fmaxf(max, shared[w]);
  return max;
}

struct SoftmaxShared {
  float max[kMaxWarps];
  int32 first[kMaxWarps];
  double sum[kMaxWarps];
  double moment[kMaxWarps];
};

// The whole block's softmax in each of its threads. Two barriers; `shared` may be used again after
// one more.
__device__ inline Softmax join(Softmax own, float scale, SoftmaxShared& shared) {
  const float max = block_max(own.max, shared.max);
  int32 first = own.max == max ? own.first : kNoColumn;
  // Sums below different maxima cannot be added, so every thread moves to the block's maximum.
  own.raise(max, scale);
  const double sum = warp_sum(own.sum);
  const double moment = warp_sum(own.moment);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const int32 other = __shfl_xor_sync(kAllLanes, first, offset);
    first = other < first ? other : first;
  }
  if (threadIdx.x % kWarp == 0) {
    shared.first[threadIdx.x / kWarp] = first;
    shared.sum[threadIdx.x / kWarp] = sum;
    shared.moment[threadIdx.x / kWarp] = moment;
  }
  __syncthreads();

  Softmax all;
  all.max = max;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    all.sum += shared.sum[w];
    all.moment += shared.moment[w];
    all.first = shared.first[w] < all.first ? shared.first[w] : all.first;
  }
  return all;
}

// Statistics of a row's softmax over this rank's columns, in every thread.
__device__ inline Softmax row_statistics(const float* row, int32 width, float scale, bool moment,
                                         SoftmaxShared& shared) {
  Softmax own;
#pragma unroll 1
  for (int32 p = pieces_of(width) - 1; p >= 0; --p) {
    const Piece x = load_piece(row, p, width, width % 4 == 0);
    if (moment)
      own.add<true>(x, p, scale);
    else
      own.add<false>(x, p, scale);
  }
  return join(own, scale, shared);
}

// Barriers for a narrower gradient that takes the place of its row's front. Piece p is written over
// columns of piece p / 2, which every thread must have read. A barrier after the reading of piece p
// answers for the pieces up to 2 p + 1, so that a row needs a handful.
// Use: read piece p; before_writing(p); write piece p; p ascending, alike in all threads.
template <class T>
class InPlace {
 public:
  __device__ void before_writing(int32 piece) {
    if (sizeof(T) == sizeof(float) || piece != next_) return;
    __syncthreads();
    next_ = 2 * piece + 2;
  }

 private:
  int32 next_ = 0;
};

// The target's column among this rank's, or -1.
__device__ inline int32 own_column(int64 id, int64 begin, int32 width) {
  const int64 column = id - begin;
  return column >= 0 && column < width ? static_cast<int32>(column) : -1;
}

// Adds to the target's element, if the four at `column` has it.
__device__ inline void add_at_target(Pack<float>& g, int32 column, int32 target, float value) {
  if (target < column || target >= column + 4) return;
#pragma unroll
  for (int32 i = 0; i < 4; ++i)
    if (column + i == target) g.v[i] += value;
}

}  // namespace retort::kernels
