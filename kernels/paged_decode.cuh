// Attention of one query token a sequence over a paged cache (flash-decoding).
//
//   s[j] = scale * q . k[j], softcap > 0: softcap * tanh(s[j] / softcap)
//   y = sum_j softmax(s)[j] v[j],  max(0, length - window) <= j < length; window 0: all j < length
//
// Shapes:
//   q, y        [B, heads, d] bf16 or float32, contiguous; d is 64, 128 or 256
//   keys, values  key j of a sequence, for kv head h, is the d neighbours at
//               tables[b, j / block_tokens] * block_stride + (j % block_tokens) * token_stride +
//               h * head_stride (elements). DeviceStepModel's [slots, kv_heads, d]: block_stride =
//               block_tokens * kv_heads * d, token_stride = kv_heads * d, head_stride = d. Better
//               is [blocks, kv_heads, block_tokens, d]: a head's keys of a block are one run of
//               block_tokens * d (4 KiB) instead of rows of 256 bytes.
//   tables      [B, max_blocks] int32; lengths [B] int32. A length of 0 is a padded row: y is 0.
//   piece_max, piece_sum  [B, heads, num_pieces] float32, piece_acc [.., d] float32: scratch, of
//               which the join reads no more than what was written
// Two launches, of which the second joins what the first wrote:
//   retort_paged_decode_<dtype>_g<G>: grid (num_pieces, B * kv_heads * ceil(group / G)), 64 to
//     256 threads, whole warps. G is the heads of a group that read a key together, group = heads /
//     kv_heads: of bf16 the least of 2, 4, 8 that is >= group, or 8; of float32 always 4.
//   retort_paged_decode_join_<dtype>: grid (ceil(heads * d / 8 / threads), B), any threads to 256.
//   piece is 1 to 512 keys, num_pieces >= the pieces any sequence touches: max_length / piece
//   rounded up; with a window, window / piece rounded up + 1 is enough.
//   H100, 2026-11-26, bf16, when each d had kernels of its own: 128 threads, pieces of 256. 16/8
//   heads of 128: 64 x 512 keys 64.5 us = 2,079 GB/s (64 threads 2,243), 64 x 4,096 2,723; 32/8: 64
//   x 1,024 2,188; one sequence of 512, pieces of 64: 13 us. Gathering and ATen's SDPA take 2.5 to
//   3 times as long.
// Bytes: 2 * d * sizeof(T) a key and kv head, once; 2 * 4 * d a piece and head beside.
// Alignment: q, y, keys, values and strides in whole 16 bytes.
// Order: pieces begin at multiples of `piece` of a sequence, and are summed in their order. The
// bits of a row depend on its own keys, `piece` and the threads of a block, on nothing else.
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

constexpr int kMaxPiece = 512;
constexpr int kMaxDecodeWarps = 8;
constexpr int kRowElements = 8;   // of a row, in a thread
constexpr int kDecodeUnroll = 4;  // loads of 16 bytes that a thread has in flight

// The first steps of summing kValues numbers over `lanes` lanes at once: in each a lane gives one
// half of its numbers away and keeps the other. It is left with a part of number (lane % lanes) /
// (lanes / kValues), to be summed over lanes / kValues neighbours.
template <int kValues>
__device__ inline float scattered(const float (&v)[kValues], int lane, int lanes) {
  if constexpr (kValues == 1) {
    return v[0];
  } else {
    constexpr int kHalf = kValues / 2;
    const bool upper = (lane & (lanes / 2)) != 0;
    float kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float given = upper ? v[i] : v[i + kHalf];
      kept[i] = (upper ? v[i + kHalf] : v[i]) + __shfl_xor_sync(kAllLanes, given, lanes / 2);
    }
    return scattered<kHalf>(kept, lane, lanes / 2);
  }
}

// The keys that a sequence sees, and its pieces.
struct SeenKeys {
  int32 first, end, first_piece;
  __device__ SeenKeys(int32 length, int32 window, int32 piece)
      : first(window > 0 && length > window ? length - window : 0), end(length) {
    first_piece = first / piece;
  }
  __device__ int32 num_pieces(int32 piece) const {
    return end <= 0 ? 0 : (end - 1) / piece - first_piece + 1;
  }
};

// A lane's 8 numbers of a row of d, which lies over d / 8 lanes in packs.
template <class T>
struct RowOverLanes {
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kPacks = kRowElements / kSize;

  Pack<T> packs[kPacks];

  // Returns the place in the row of the lane's `element`th number.
  __device__ static int dim_of(int lane, int lanes, int element) {
    return (element / kSize * lanes + lane % lanes) * kSize + element % kSize;
  }
  __device__ void load(const T* row, int lane, int lanes) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
      packs[p] = load_pack(row + dim_of(lane, lanes, p * kSize));
  }
  __device__ void clear() {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int e = 0; e < kSize; ++e)
        packs[p].v[e] = T{};
  }
  __device__ float at(int element) const {
    return widen(packs[element / kSize].v[element % kSize]);
  }
};

// One piece of one sequence for kHeads heads of a group.
template <class T, int kHeads>
__device__ inline void paged_decode_piece(const T* q, const T* keys, const T* values,
                                          const int32* tables, const int32* lengths,
                                          float* piece_max, float* piece_sum, float* piece_acc,
                                          int32 heads, int32 kv_heads, int32 dim, int32 max_blocks,
                                          int32 block_tokens, int64 block_stride,
                                          int64 token_stride, int64 head_stride, int32 piece,
                                          int32 window, float scale, float softcap) {
  using Row = RowOverLanes<T>;
  const float kLeast = __uint_as_float(0xff800000u);  // -inf
  __shared__ int64 offsets[kMaxPiece];
  alignas(16) __shared__ float scores[kMaxPiece * kHeads];
  __shared__ float warp_max[kMaxDecodeWarps * kHeads];
  __shared__ float warp_sums[kMaxDecodeWarps * kHeads];

  const int group = heads / kv_heads;
  const int tiles = (group + kHeads - 1) / kHeads;
  const int sequence = blockIdx.y / (kv_heads * tiles);
  const SeenKeys seen(lengths[sequence], window, piece);
  const int32 index = seen.first_piece + static_cast<int32>(blockIdx.x);
  const int32 begin = index * piece > seen.first ? index * piece : seen.first;
  const int32 end = (index + 1) * piece < seen.end ? (index + 1) * piece : seen.end;
  const int32 count = end - begin;
  // A block without keys writes nothing, and the join does not read its place.
  if (count <= 0) return;

  const int kv_head = blockIdx.y / tiles % kv_heads;
  const int tile = blockIdx.y % tiles;
  const int num_heads = group - tile * kHeads < kHeads ? group - tile * kHeads : kHeads;
  const int64 first_head = static_cast<int64>(sequence) * heads + kv_head * group + tile * kHeads;

  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  const int lanes = dim / kRowElements;         // of a key
  const int streams = warps * (kWarp / lanes);  // keys that are read at once
  const int stream = threadIdx.x / lanes;

  // The block looks up once where the piece's keys lie: keys and values are both read there.
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int32 position = begin + i;
    const int64 block = tables[static_cast<int64>(sequence) * max_blocks + position / block_tokens];
    offsets[i] =
        block * block_stride + position % block_tokens * token_stride + kv_head * head_stride;
  }
  // The queries stay in registers, scaled already, and meet every key of the piece.
  float queries[kHeads][kRowElements];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    Row row;
    if (h < num_heads)
      row.load(q + (first_head + h) * dim, lane, lanes);
    else
      row.clear();
#pragma unroll
    for (int e = 0; e < kRowElements; ++e)
      queries[h][e] = row.at(e) * scale;
  }
  __syncthreads();

  Row rows[kDecodeUnroll];
  const auto load_rows = [&](const T* cache, int base) {
#pragma unroll
    for (int u = 0; u < kDecodeUnroll; ++u) {
      const int key = base + u * streams + stream;
      if (key < count)
        rows[u].load(cache + offsets[key], lane, lanes);
      else
        rows[u].clear();
    }
  };

  // The scores of all keys. Each lane keeps the largest of the one head whose sums end with it.
  const int my_head = lane % lanes / (lanes / kHeads);
  const bool writes = lane % (lanes / kHeads) == 0;
  float largest = kLeast;
  for (int base = 0; base < count; base += streams * kDecodeUnroll) {
    load_rows(keys, base);
    float score[kDecodeUnroll];
#pragma unroll
    for (int u = 0; u < kDecodeUnroll; ++u) {
      float products[kHeads] = {};
#pragma unroll
      for (int e = 0; e < kRowElements; ++e) {
        const float k = rows[u].at(e);
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
          products[h] += queries[h][e] * k;
      }
      score[u] = scattered<kHeads>(products, lane, lanes);
    }
    for (int offset = lanes / kHeads / 2; offset > 0; offset /= 2)
#pragma unroll
      for (int u = 0; u < kDecodeUnroll; ++u)
        score[u] += __shfl_xor_sync(kAllLanes, score[u], offset);
#pragma unroll
    for (int u = 0; u < kDecodeUnroll; ++u) {
      if (softcap > 0) score[u] = softcap * tanhf(score[u] / softcap);
      const int key = base + u * streams + stream;
      if (key >= count) continue;
      largest = fmaxf(largest, score[u]);
      if (writes) scores[key * kHeads + my_head] = score[u];
    }
  }
#pragma unroll
  for (int offset = lanes; offset < kWarp; offset *= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  if (writes && lane < lanes) warp_max[warp * kHeads + my_head] = largest;
  load_rows(values, 0);  // on their way while the block waits for its slowest warp
  __syncthreads();

  // Weights take the place of scores, below the piece's own maximum, so that none overflows. A
  // thread meets one head only: kHeads divides the warp.
  const int head = threadIdx.x % kHeads;
  float shift = kLeast;
  for (int w = 0; w < warps; ++w)
    shift = fmaxf(shift, warp_max[w * kHeads + head]);
  const float shift_or_0 = shift == kLeast ? 0.0f : shift;
  float sum = 0;
  for (int i = threadIdx.x; i < count * kHeads; i += blockDim.x) {
    const float weight = expf(scores[i] - shift_or_0);
    scores[i] = weight;
    sum += weight;
  }
#pragma unroll
  for (int offset = kHeads; offset < kWarp; offset *= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  if (lane < kHeads) warp_sums[warp * kHeads + lane] = sum;
  __syncthreads();

  // Each stream forms the weighted sum of its own values, for all heads of the tile at once.
  float acc[kHeads][kRowElements];
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int e = 0; e < kRowElements; ++e)
      acc[h][e] = 0;
  for (int base = 0; base < count;) {
#pragma unroll
    for (int u = 0; u < kDecodeUnroll; ++u) {
      const int key = base + u * streams + stream;
      float weights[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
        weights[h] = key < count ? scores[key * kHeads + h] : 0.0f;
#pragma unroll
      for (int e = 0; e < kRowElements; ++e) {
        const float v = rows[u].at(e);
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
          acc[h][e] += weights[h] * v;
      }
    }
    base += streams * kDecodeUnroll;
    if (base < count) load_rows(values, base);
  }

  // The sums are joined over the streams of a warp, then over warps one after the other, so that
  // their order and their bits are fixed. They take the place of the weights.
  for (int offset = lanes; offset < kWarp; offset *= 2)
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
#pragma unroll
      for (int e = 0; e < kRowElements; ++e)
        acc[h][e] += __shfl_xor_sync(kAllLanes, acc[h][e], offset);
  float* sums = scores;
  __syncthreads();
  for (int w = 0; w < warps; ++w) {
    if (warp == w && lane < lanes) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
#pragma unroll
        for (int e = 0; e < kRowElements; ++e) {
          const int at = h * dim + Row::dim_of(lane, lanes, e);
          sums[at] = w == 0 ? acc[h][e] : sums[at] + acc[h][e];
        }
    }
    __syncthreads();
  }

  const int64 num_pieces = gridDim.x;
  for (int i = threadIdx.x * 4; i < num_heads * dim; i += blockDim.x * 4) {
    const int64 at = ((first_head + i / dim) * num_pieces + blockIdx.x) * dim + i % dim;
    store_pack(piece_acc + at, load_pack(sums + i));
  }
  if (static_cast<int>(threadIdx.x) < num_heads) {  // then `head` is the thread's number
    float total = 0;
    for (int w = 0; w < warps; ++w)
      total += warp_sums[w * kHeads + head];
    const int64 at = (first_head + head) * num_pieces + blockIdx.x;
    piece_max[at] = shift;
    piece_sum[at] = total;
  }
}

// Joins eight numbers of a row of heads * dim from its pieces.
template <class T>
__device__ inline void paged_decode_join(const float* piece_max, const float* piece_sum,
                                         const float* piece_acc, const int32* lengths, T* y,
                                         int32 heads, int32 dim, int32 num_pieces, int32 piece,
                                         int32 window) {
  constexpr int kElements = 8;
  const float kLeast = __uint_as_float(0xff800000u);  // -inf
  const int sequence = blockIdx.y;
  const int64 i = (static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x) * kElements;
  if (i >= static_cast<int64>(heads) * dim) return;
  const int32 pieces = SeenKeys(lengths[sequence], window, piece).num_pieces(piece);
  const int64 head = static_cast<int64>(sequence) * heads + i / dim;
  const float* maxima = piece_max + head * num_pieces;
  const float* totals = piece_sum + head * num_pieces;
  const float* acc = piece_acc + head * num_pieces * dim + i % dim;

  // Pieces are joined below the largest of their maxima, in their order.
  float largest = kLeast;
  for (int32 p = 0; p < pieces; ++p)
    largest = fmaxf(largest, maxima[p]);
  const float shift = largest == kLeast ? 0.0f : largest;
  float total = 0;
  float sums[kElements] = {};
#pragma unroll 4
  for (int32 p = 0; p < pieces; ++p) {
    const float weight = expf(maxima[p] - shift);
    const Pack<float> low = load_pack(acc + static_cast<int64>(p) * dim);
    const Pack<float> high = load_pack(acc + static_cast<int64>(p) * dim + 4);
    total += weight * totals[p];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[e] += weight * low.v[e];
      sums[e + 4] += weight * high.v[e];
    }
  }

  T* out = y + static_cast<int64>(sequence) * heads * dim + i;
#pragma unroll
  for (int e = 0; e < kElements; e += Pack<T>::kSize) {
    Pack<T> pack;
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j)
      pack.v[j] = narrow<T>(pieces == 0 ? 0.0f : sums[e + j] / total);
    store_pack(out + e, pack);
  }
}

}  // namespace retort::kernels

// Two blocks of 256 threads a processor: at most 128 registers.
#define RETORT_PAGED_DECODE(DTYPE, T, GROUP)                                                     \
  extern "C" __global__ void __launch_bounds__(256, 2) retort_paged_decode_##DTYPE##_g##GROUP(   \
      const T* q, const T* keys, const T* values, const int* tables, const int* lengths,         \
      float* piece_max, float* piece_sum, float* piece_acc, int heads, int kv_heads, int dim,    \
      int max_blocks, int block_tokens, long long block_stride, long long token_stride,          \
      long long head_stride, int piece, int window, float scale, float softcap) {                \
    retort::kernels::paged_decode_piece<T, GROUP>(                                               \
        q, keys, values, tables, lengths, piece_max, piece_sum, piece_acc, heads, kv_heads, dim, \
        max_blocks, block_tokens, block_stride, token_stride, head_stride, piece, window, scale, \
        softcap);                                                                                \
  }
#define RETORT_PAGED_DECODE_JOIN(DTYPE, T)                                                         \
  extern "C" __global__ void __launch_bounds__(256) retort_paged_decode_join_##DTYPE(              \
      const float* piece_max, const float* piece_sum, const float* piece_acc, const int* lengths,  \
      T* y, int heads, int dim, int num_pieces, int piece, int window) {                           \
    retort::kernels::paged_decode_join<T>(piece_max, piece_sum, piece_acc, lengths, y, heads, dim, \
                                          num_pieces, piece, window);                              \
  }

RETORT_PAGED_DECODE(bf16, retort::kernels::Bf16, 2)
RETORT_PAGED_DECODE(bf16, retort::kernels::Bf16, 4)
RETORT_PAGED_DECODE(bf16, retort::kernels::Bf16, 8)
RETORT_PAGED_DECODE(f32, float, 4)
RETORT_PAGED_DECODE_JOIN(bf16, retort::kernels::Bf16)
RETORT_PAGED_DECODE_JOIN(f32, float)

#undef RETORT_PAGED_DECODE
#undef RETORT_PAGED_DECODE_JOIN
