// The k largest of each row, and what its softmax has: all of the row, and all but the k.
//
// retort_top_k_rows_f32: values [R, k] float32, descending, and ids [R, k] int64; of equal values
//   those with the lowest id, in its order; NaN is larger than any number, -0 equals 0. max [R]
//   float32 of the row and sum [R] float64 of exp((logit - max) / T), so that the log-probability
//   of a value is (value - max) / T - log sum. tail_max and tail_sum are those of the columns that
//   are not among the k: -inf and 0 where there are none. The tail has a maximum of its own and is
//   summed over its own columns, because a small one would lose every digit as a difference from
//   1, and all of it below e^-64. Of each pair both are null or neither.
//   Shapes: logits [R, V] float32, rows `stride` apart, k <= min(V, 1,024).
//   Bytes a row: 8 V read. The first reading finds a bound from below: of the maxima of many
//   groups of a row's elements the k-th largest. The second takes all that is not below it, hardly
//   more than k of them, which are sorted, and sums the others. A row where they are too many (many
//   equal values, or an order against us) is read once more for every 8 bits by which the bound is
//   raised.
//   Launch: a block a row, blockDim.x a multiple of 32 up to 1,024; 4 blockDim.x >= k is faster.
//   H100, 2026-11-26, [1024, 151936], GB/s of 8 V, before it summed the tail (which has not run on
//   a GPU): k 64 512 threads 2,697, k 256 256 threads 2,582, k 1024 512 threads 1,861 (k 64
//   0.46 ms, ATen's 9.27).
//   Alignment: 16-byte access where 4 divides the stride and 16 the address of the first row.
#pragma once

#include "kernels/row_softmax.cuh"

namespace retort::kernels {

constexpr int32 kCandidates = 4096;  // a power of two, >= 4 threads of the largest block
constexpr int32 kDigits = 256;

// Maps values to integers in their order; NaN is the largest.
__device__ inline uint32 ordered(float x) {
  if (x != x) return 0xffffffffu;
  const uint32 bits = __float_as_uint(x + 0.0f);  // -0 becomes 0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// All keys of a row differ: of equal values the lower column is the larger. 0 is none of them.
__device__ inline uint64 key_of(float x, int32 column) {
  return static_cast<uint64>(ordered(x)) << 32 | static_cast<uint32>(~column);
}
__device__ inline int32 column_of_key(uint64 key) {
  return static_cast<int32>(~static_cast<uint32>(key));
}

struct TopKShared {
  uint64 keys[kCandidates];
  uint32 counts[kDigits];
  int32 taken;
  uint64 bound;
  int32 wanted;
  SoftmaxShared softmax;
};

// Descending, by all threads; `count` is a power of two. A barrier at the end.
__device__ inline void sort_descending(uint64* keys, int32 count) {
  for (int32 size = 2; size <= count; size *= 2)
    for (int32 step = size / 2; step > 0; step /= 2) {
      for (int32 t = threadIdx.x; t < count / 2; t += blockDim.x) {
        const int32 low = t / step * (2 * step) + t % step;
        const int32 high = low + step;
        const bool descending = (low & size) == 0;
        const uint64 a = keys[low];
        const uint64 b = keys[high];
        if ((a < b) == descending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
      __syncthreads();
    }
}

__device__ inline int32 power_of_two_from(int32 count) {
  int32 power = 1;
  while (power < count)
    power *= 2;
  return power;
}

// f(x, column) of every column that is in the row.
template <class F>
__device__ inline void for_elements(const float* row, int32 width, bool aligned, const F& f) {
#pragma unroll 1
  for (int32 p = pieces_of(width) - 1; p >= 0; --p) {
    const Piece x = load_piece(row, p, width, aligned);
#pragma unroll
    for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
      for (int32 i = 0; i < 4; ++i) {
        const int32 column = column_of(p, c) + i;
        if (column < width) f(x.four[c].v[i], column);
      }
  }
}

// Takes the columns whose key is not below the bound, in any order, as far as there is room, and
// returns how many there are. If asked, `tail` becomes this thread's softmax of the others.
// Barriers around.
__device__ inline int32 collect(const float* row, int32 width, bool aligned, uint64 bound,
                                float scale, bool with_tail, Softmax& tail, TopKShared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.taken = 0;
  __syncthreads();
  const uint32 least = static_cast<uint32>(bound >> 32);
  tail = Softmax{};
#pragma unroll 1
  for (int32 p = pieces_of(width) - 1; p >= 0; --p) {
    Piece x = load_piece(row, p, width, aligned);
#pragma unroll
    for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
      for (int32 i = 0; i < 4; ++i) {
        const int32 column = column_of(p, c) + i;
        const float value = x.four[c].v[i];
        if (column >= width || ordered(value) < least) continue;
        const uint64 key = key_of(value, column);
        if (key < bound) continue;
        x.four[c].v[i] = minus_infinity();  // no part of the tail, until the k are known
        const int32 place = atomicAdd(&shared.taken, 1);
        if (place < kCandidates) shared.keys[place] = key;
      }
    if (with_tail) tail.add<false>(x, p, scale);
  }
  __syncthreads();
  return shared.taken;
}

// The largest bound that at most kCandidates and at least k keys of the row reach, digit by digit.
__device__ inline uint64 select_bound(const float* row, int32 width, bool aligned, int32 k,
                                      TopKShared& shared) {
  uint64 bound = 0;
  int32 above = 0;  // keys that are larger than all with the bound's digits
  for (int32 shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int32 d = threadIdx.x; d < kDigits; d += blockDim.x)
      shared.counts[d] = 0;
    __syncthreads();
    for_elements(row, width, aligned, [&](float x, int32 column) {
      const uint64 key = key_of(x, column);
      if (shift < 56 && key >> (shift + 8) != bound >> (shift + 8)) return;
      atomicAdd(&shared.counts[(key >> shift) & (kDigits - 1)], 1u);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      int32 reach = above;
      int32 digit = kDigits;
      while (digit > 0 && reach < k)
        reach += static_cast<int32>(shared.counts[--digit]);
      shared.bound = bound | static_cast<uint64>(digit) << shift;
      shared.wanted = reach;
      shared.taken = reach - static_cast<int32>(shared.counts[digit]);
    }
    __syncthreads();
    bound = shared.bound;
    above = shared.taken;
    if (shared.wanted <= kCandidates) break;
  }
  return bound;
}

// Where a row's results go. max and sum, tail_max and tail_sum may be null.
struct TopKOutputs {
  float* values;
  int64* ids;
  float* max;
  double* sum;
  float* tail_max;
  double* tail_sum;
};

__device__ inline void store_softmax(const Softmax& own, float scale, float* max, double* sum,
                                     TopKShared& shared) {
  const Softmax all = join(own, scale, shared.softmax);
  if (threadIdx.x != 0) return;
  *max = all.max;
  *sum = all.sum;
}

// The first reading: forms the row's softmax, and returns a bound that at least k keys of the row
// reach. Ends with a barrier.
__device__ inline uint64 first_bound(const float* row, int32 width, bool aligned, int32 k,
                                     float scale, const TopKOutputs& to, TopKShared& shared) {
  // A maximum for each thread and place in a four.
  Softmax own;
  uint32 tops[4] = {};
#pragma unroll 1
  for (int32 p = pieces_of(width) - 1; p >= 0; --p) {
    const Piece x = load_piece(row, p, width, aligned);
    if (to.max) own.add<false>(x, p, scale);
#pragma unroll
    for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
      for (int32 i = 0; i < 4; ++i) {
        const uint32 bits = ordered(x.four[c].v[i]);
        if (column_of(p, c) + i < width && bits > tops[i]) tops[i] = bits;
      }
  }
  if (to.max) store_softmax(own, scale, to.max, to.sum, shared);

  // Groups are threads where there are many times as many as k, else places in their fours. With
  // fewer groups than k, or empty ones among the k, the bound is 0.
  const int32 threads = static_cast<int32>(blockDim.x);
  const bool coarse = 4 * k <= threads;
  if (coarse) {
    const uint32 left = tops[0] > tops[1] ? tops[0] : tops[1];
    const uint32 right = tops[2] > tops[3] ? tops[2] : tops[3];
    shared.keys[threadIdx.x] = left > right ? left : right;
  } else {
#pragma unroll
    for (int32 i = 0; i < 4; ++i)
      shared.keys[i * threads + threadIdx.x] = tops[i];
  }
  const int32 groups = coarse ? threads : 4 * threads;
  const int32 padded = power_of_two_from(groups);
  for (int32 g = groups + threadIdx.x; g < padded; g += threads)
    shared.keys[g] = 0;
  __syncthreads();
  sort_descending(shared.keys, padded);
  return k <= groups ? shared.keys[k - 1] << 32 : 0;
}

__device__ inline void top_k_row(const float* row, int32 width, bool aligned, int32 k, float scale,
                                 const TopKOutputs& to, TopKShared& shared) {
  uint64 bound = first_bound(row, width, aligned, k, scale, to, shared);

  // The second reading takes all that reach the bound. Only where they are too many do further
  // readings raise it.
  const bool with_tail = to.tail_max != nullptr;
  Softmax tail;
  int32 count = collect(row, width, aligned, bound, scale, with_tail, tail, shared);
  if (count > kCandidates) {
    bound = select_bound(row, width, aligned, k, shared);
    count = collect(row, width, aligned, bound, scale, with_tail, tail, shared);
  }
  const int32 threads = static_cast<int32>(blockDim.x);
  const int32 padded = power_of_two_from(count);
  for (int32 i = count + threadIdx.x; i < padded; i += threads)
    shared.keys[i] = 0;
  __syncthreads();
  sort_descending(shared.keys, padded);
  for (int32 i = threadIdx.x; i < k; i += threads) {
    const int32 column = column_of_key(shared.keys[i]);
    to.values[i] = row[column];
    to.ids[i] = column;
  }

  // Candidates behind the k belong to the tail.
  if (!with_tail) return;
  for (int32 i = k + threadIdx.x; i < count; i += threads)
    tail.add(row[column_of_key(shared.keys[i])], scale);
  store_softmax(tail, scale, to.tail_max, to.tail_sum, shared);
}

}  // namespace retort::kernels

extern "C" __global__ void __launch_bounds__(1024)
    retort_top_k_rows_f32(const float* logits, long long stride, long long width, int k,
                          float inv_temperature, float* values, long long* ids, float* max,
                          double* sum, float* tail_max, double* tail_sum) {
  using namespace retort::kernels;
  __shared__ TopKShared shared;
  const int64 r = blockIdx.x;
  const TopKOutputs to{values + r * k,
                       ids + r * k,
                       max ? max + r : nullptr,
                       sum ? sum + r : nullptr,
                       tail_max ? tail_max + r : nullptr,
                       tail_sum ? tail_sum + r : nullptr};
  top_k_row(logits + r * stride, static_cast<int32>(width), stride % 4 == 0 && on_16_bytes(logits),
            k, inv_temperature, to, shared);
}
