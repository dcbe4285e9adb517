// Tokens drawn from logits, as choose_token (models/generation/sampler.cc) draws them.
//
//   e[i] = exp_float(x[i] - max x), normaliser = max x + log(sum e): of the whole vocabulary
//   temperature 0: token = the first largest of x[0 .. num_ids)
//   else w[i] = exp_float((x[i] - largest of x[0 .. num_ids)) * inverse_temperature), 0 if < min_p
//        token = argmax w[i] / minus_log(uniform(key, i)), the first one at a tie
//   logp = x[token] - normaliser; sampling_logp likewise of w, 0 at temperature 0
//
// Not here, and left to the host: top_k, top_p, typical_p, penalties and barred ids.
//
// The arithmetic that decides is vector_sampling.h's and exp_float.h's, operation by operation and
// without a fused multiply-add. The weights and scores have the bits of the host's functions where
// those are compiled without contraction, and the token is their token. (GCC contracts for
// x86-64-v3 and -v4 unless told not to: one weight in a hundred then differs in its last bit.) The
// sums, which the host forms by lanes of its vectors, are float64 here: log-probabilities agree to
// some 1e-5.
//
// Shapes: logits [R, vocab_size] float32, rows contiguous; rows [B] SampleRow; out [B]
// SampledToken.
// Launch: grid B, a block a draw, whole warps to 1024 threads (1024 is best where B < the device's
//   processors). H100, 2026-11-26, V 151936, temperature 1: B 1 86 us (768 or 1024 threads), B 64
//   93 us = 418 GB/s of 4 V (1024), B 256 195 us = 797 GB/s (512); ATen 54, 187 and 619 us.
// Bytes: 8 V a draw, the second 4 V from the cache. Alignment: any; 16-byte loads where the row's
//   address is a multiple of 16.
#pragma once

#include "kernels/device.cuh"

namespace retort::kernels {

// 32 bytes; the host fills it in.
struct SampleRow {
  uint64 key;                 // noise_key(seed, sample, position)
  double temperature;         // 0: greedy
  float inverse_temperature;  // static_cast<float>(1.0 / temperature)
  float min_p;                // static_cast<float>(options.min_p); 0: all
  int32 row;                  // of the logits
  int32 num_ids;              // 0: all
};

// 16 bytes.
struct SampledToken {
  int32 token;  // -1: the logits are not finite
  float logp;
  float sampling_logp;
  int32 unused;
};

// exp_float.h. Each operation is rounded by itself: the intrinsics are never fused.
__device__ inline float exp_unfused(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 12582912.0f;
  const float n = __fadd_rn(__fadd_rn(__fmul_rn(x, 1.44269504088896341f), kRound), -kRound);
  const float r =
      __fadd_rn(__fadd_rn(x, -__fmul_rn(n, 0.693359375f)), -__fmul_rn(n, -2.12194440e-4f));
  float p = 1.9875691500e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
  return __fmul_rn(p, __uint_as_float(static_cast<uint32>(static_cast<int32>(n) + 127) << 23));
}

__device__ inline uint64 mix_bits(uint64 z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// vector_sampling.h's, for any positive normal number.
__device__ inline double minus_log_unfused(double u) {
  const int64 bits = __double_as_longlong(u);
  const int64 k = (bits - 0x3fe6a09e667f3bcdll) >> 52;
  const double m = __longlong_as_double(bits - k * (1ll << 52));
  const double s = __dadd_rn(m, -1.0) / __dadd_rn(m, 1.0);
  const double z = __dmul_rn(s, s);
  double p = 1.0 / 15;
  p = __dadd_rn(__dmul_rn(p, z), 1.0 / 13);
  p = __dadd_rn(__dmul_rn(p, z), 1.0 / 11);
  p = __dadd_rn(__dmul_rn(p, z), 1.0 / 9);
  p = __dadd_rn(__dmul_rn(p, z), 1.0 / 7);
  p = __dadd_rn(__dmul_rn(p, z), 1.0 / 5);
  p = __dadd_rn(__dmul_rn(p, z), 1.0 / 3);
  const double log_m = __dmul_rn(2.0, __dadd_rn(s, __dmul_rn(__dmul_rn(s, z), p)));
  return -__dadd_rn(__dmul_rn(static_cast<double>(k), 0.6931471805599453), log_m);
}

__device__ inline double race_score(float weight, uint64 bits) {
  const double u =
      __dmul_rn(__dadd_rn(static_cast<double>(static_cast<int64>(bits >> 11)), 0.5), 0x1.0p-53);
  return static_cast<double>(weight) / minus_log_unfused(u);
}

// The largest value, the first of equals.
template <class T>
struct Best {
  T value;
  int32 id;
  __device__ void meet(T other, int32 other_id) {
    if (other > value || (other == value && other_id < id)) {
      value = other;
      id = other_id;
    }
  }
};

template <class T>
__device__ inline Best<T> warp_best(Best<T> best) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const T value = __shfl_xor_sync(kAllLanes, best.value, offset);
    const int32 id = __shfl_xor_sync(kAllLanes, best.id, offset);
    best.meet(value, id);
  }
  return best;
}

// Returns the best of all threads, in each of them. `values` and `ids` have kMaxWarps places and
// are free again after it.
template <class T>
__device__ inline Best<T> block_best(Best<T> best, T* values, int32* ids) {
  best = warp_best(best);
  if (threadIdx.x % kWarp == 0) {
    values[threadIdx.x / kWarp] = best.value;
    ids[threadIdx.x / kWarp] = best.id;
  }
  __syncthreads();
  const int warps = blockDim.x / kWarp;
  Best<T> all{values[0], ids[0]};
  for (int w = 1; w < warps; ++w)
    all.meet(values[w], ids[w]);
  __syncthreads();
  return all;
}

__device__ inline double block_total(double x, double* shared) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(kAllLanes, x, offset);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  const int warps = blockDim.x / kWarp;
  double total = 0;
  for (int w = 0; w < warps; ++w)
    total += shared[w];
  __syncthreads();
  return total;
}

// Calls visit(id of the first, values[4], how many of them count) with all lanes of a warp at once,
// in ascending order within a thread.
template <class Visit>
__device__ inline void for_fours(const float* x, int32 size, Visit visit) {
  constexpr int kFour = 4;
  constexpr int kUnroll = 4;
  const bool aligned = reinterpret_cast<uint64>(x) % 16 == 0;
  const int32 step = blockDim.x * kFour;
  const int32 mine = threadIdx.x * kFour;
  int32 base = 0;
  if (aligned) {
    for (; base + kUnroll * step <= size; base += kUnroll * step) {
      Pack<float> packs[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        packs[u] = load_pack(x + base + u * step + mine);
#pragma unroll 1
      for (int u = 0; u < kUnroll; ++u) {
        const Pack<float> pack =
            u == 0 ? packs[0] : (u == 1 ? packs[1] : (u == 2 ? packs[2] : packs[3]));
        visit(base + u * step + mine, pack.v, kFour);
      }
    }
  }
  for (; base < size; base += step) {
    const int32 begin = base + mine;
    const int32 left = size - begin < 0 ? 0 : size - begin;
    float values[kFour];
#pragma unroll
    for (int j = 0; j < kFour; ++j)
      values[j] = j < left ? x[begin + j] : 0.0f;
    visit(begin, values, left < kFour ? left : kFour);
  }
}

__device__ inline void sample_row(const float* logits, const SampleRow* rows, SampledToken* out,
                                  int32 vocab_size) {
  const float kInfinite = __uint_as_float(0x7f800000u);
  __shared__ double doubles[kMaxWarps];
  __shared__ float floats[kMaxWarps];
  __shared__ int32 ids[kMaxWarps];
  const SampleRow row = rows[blockIdx.x];
  const float* x = logits + static_cast<int64>(row.row) * vocab_size;
  const int32 num_ids = row.num_ids > 0 && row.num_ids < vocab_size ? row.num_ids : vocab_size;

  // The first reading finds the largest of all, the largest of those that may be drawn, and the
  // smallest. A NaN is skipped, and shows in the sum.
  Best<float> top{-kInfinite, 0};
  float largest = -kInfinite;
  float smallest = kInfinite;
  for_fours(x, vocab_size, [&](int32 id, const float* values, int count) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= count) continue;
      const float value = values[j];
      largest = fmaxf(largest, value);
      smallest = fminf(smallest, value);
      if (id + j < num_ids && value > top.value) top = {value, id + j};
    }
  });
  top = block_best(top, floats, ids);
  largest = block_best(Best<float>{largest, 0}, floats, ids).value;
  smallest = -block_best(Best<float>{-smallest, 0}, floats, ids).value;

  // The second reading forms the two sums and runs the race. A warp forms the exact score, with its
  // two divisions in float64, of those alone whose score may pass the warp's best: `uniform` is at
  // least u, so `least` is at most -log(u), less what __logf and two roundings may be wrong by.
  const bool draws = row.temperature != 0;
  const bool same = row.inverse_temperature == 1.0f && top.value == largest;
  double all = 0;
  double total = 0;
  Best<double> winner{0, 0};
  float bound = 0;
  for_fours(x, vocab_size, [&](int32 id, const float* values, int count) {
    float part_all = 0;
    float part = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool counts = j < count;
      const float e = counts ? exp_unfused(__fadd_rn(values[j], -largest)) : 0.0f;
      part_all += e;
      if (!draws) continue;

      float weight = e;
      if (!same)
        weight = exp_unfused(__fmul_rn(__fadd_rn(values[j], -top.value), row.inverse_temperature));
      if (!counts || id + j >= num_ids || weight < row.min_p) weight = 0;
      part += weight;
      const uint64 bits = mix_bits(row.key ^ static_cast<uint64>(static_cast<int64>(id + j)));
      const float uniform = static_cast<float>(static_cast<int32>(bits >> 40) + 1) * 0x1.0p-24f;
      const float least = -__logf(uniform) * 0.999f - 1e-6f;
      const bool may_win = weight > 0 && weight >= bound * least;
      if (__ballot_sync(kAllLanes, may_win) == 0) continue;
      if (may_win) winner.meet(race_score(weight, bits), id + j);
      bound = warp_max(static_cast<float>(winner.value) * 0.999f);
    }
    all += static_cast<double>(part_all);
    total += static_cast<double>(part);
  });
  all = block_total(all, doubles);
  total = block_total(total, doubles);
  // The rule is that of race(): only a score above 0 wins, else id 0.
  winner = block_best(winner, doubles, ids);

  if (threadIdx.x != 0) return;
  const double normaliser = static_cast<double>(largest) - minus_log_unfused(all);
  const bool finite = largest < kInfinite && smallest > -kInfinite && all < 1e300 && all > 0;
  const int32 token = draws ? winner.id : top.id;
  SampledToken result{-1, 0, 0, 0};
  if (finite) {
    result.token = token;
    result.logp = static_cast<float>(static_cast<double>(x[token]) - normaliser);
    if (draws) {
      const double scaled =
          (static_cast<double>(x[token]) - static_cast<double>(top.value)) / row.temperature;
      result.sampling_logp = static_cast<float>(scaled + minus_log_unfused(total));
    }
  }
  out[blockIdx.x] = result;
}

}  // namespace retort::kernels

extern "C" __global__ void __launch_bounds__(1024)
    retort_sample_rows_f32(const float* logits, const retort::kernels::SampleRow* rows,
                           retort::kernels::SampledToken* out, int vocab_size) {
  retort::kernels::sample_row(logits, rows, out, vocab_size);
}
