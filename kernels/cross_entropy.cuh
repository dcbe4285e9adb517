// Cross-entropy of rows of logits, and its gradient over them.
//
// retort_ce_rows_{bf16,f32}: a whole vocabulary in one launch.
//   log_prob[r] = x[target] - log sum, entropy[r] = log sum - sum(x e) / sum, correct[r] = 1 where
//   the target is the first of the largest logits, with x = logit - max and e = exp(x) (0 below
//   e^-64); g = w[r] (e / sum - 1[target]) over the row.
//   Shapes: logits [R, V] float32, its rows V apart; targets [R] int64; weights [R] float32, null
//     for 1; log_prob, entropy (or null), correct [R] float64. g is float32 in place, or bf16 over
//     the front of the row's own memory: g of row r begins where its logits did, so that its rows
//     are 2 V elements apart.
//   Bytes a row: 4 V + 4 V read and 2 V (4 V) written, less what the second reading finds nearer:
//     the first goes from the row's end to its front. The last pieces stay in shared memory, the
//     first ones in registers, and of the others the front is in the L2 cache.
//   Launch: a block a row, blockDim.x a multiple of 32 up to 512, `kept` pieces (of 16 blockDim.x
//     columns) in dynamic shared memory of kept * 64 * blockDim.x bytes: min(pieces - 4, 7) with
//     512 threads, which have all registers of an SM. A width that 4 does not divide takes no heed
//     of `kept`. H100, 2026-11-26: 512 threads, 7 kept, bf16, [2048, 151936] 0.870 ms = 3,578 GB/s
//     of 10 V (6 kept 3,525, none 3,104; ATen 6.81 ms).
//
// retort_ce_rows_statistics: the first half, for a vocabulary of which this rank has the columns
//   [begin, begin + V). max [R] float32, sum and moment (or null) [R] float64 of e and x e below
//   *this rank's* maximum; target_logit [R] float64, 0 where another rank has the target; first [R]
//   int64, the id of the first of the largest logits. Without columns: -inf, 0, 0, 0, 2^63 - 1.
//   x = (logit - max) / T; 1 / T is 1 for cross-entropy, which knows no temperature.
//   The ranks join with M = the maximum of max, d = (max - M) / T and f = exp(d), f = d = 0 where
//   max is -inf: the sums over the ranks of sum f and of (moment + sum d) f.
// retort_ce_rows_gradient_{bf16,f32}: the second half: g from the joined max [R] float32 and sum
//   [R] float64.
//   Bytes of the two: 4 V; 4 V + 2 V (4 V). Launch: a block a row, up to 1,024 threads; 512 is
//   best. H100, 2026-11-26, [2048, 151936]: 2,987 and 2,938 GB/s (a copy has 3,008).
#pragma once

#include "kernels/row_softmax.cuh"

namespace retort::kernels {

struct CeRows {
  const int64* targets;
  const float* weights;
  double* log_prob;
  double* entropy;
  double* correct;
};

// w (e / sum - 1[target]) of one piece.
template <bool kAligned, class T>
__device__ inline void write_ce(T* out, const Piece& x, int32 index, int32 width, float shift,
                                float scale, int32 target, float weight) {
#pragma unroll
  for (int32 c = 0; c < kPieceFours; ++c) {
    const int32 column = column_of(index, c);
    Pack<float> g;
#pragma unroll
    for (int32 i = 0; i < 4; ++i)
      g.v[i] = exp_shifted(x.four[c].v[i] - shift) * scale;
    add_at_target(g, column, target, -weight);
    store_four<kAligned>(out, column, width, g);
  }
}

constexpr int32 kFrontPieces = 4;  // of a row, in registers

// The first kFront pieces of the row stay in registers, the last `kept` in shared memory.
template <class T, bool kAligned, int kFront>
__device__ inline void ce_row(float* row, int32 width, int32 kept, const CeRows& rows,
                              Pack<float>* memory, SoftmaxShared& shared) {
  const int64 r = blockIdx.x;
  const int32 pieces = pieces_of(width);
  const int32 first_kept = pieces - kept > kFront ? pieces - kept : kFront;

  // The first reading goes from the end to the front, so that the front is what lies nearest when
  // the second one begins.
  Softmax own;
#pragma unroll 1
  for (int32 p = pieces - 1; p >= kFront; --p) {
    const Piece x = load_piece(row, p, width, kAligned);
    if (p >= first_kept) {
#pragma unroll
      for (int32 c = 0; c < kPieceFours; ++c)
        memory[(p - first_kept) * piece_fours() + c * blockDim.x + threadIdx.x] = x.four[c];
    }
    own.add<true>(x, p, 1.0f);
  }
  Piece front[kFront];
#pragma unroll
  for (int32 p = kFront - 1; p >= 0; --p) {
    front[p] = load_piece(row, p, width, kAligned);
    own.add<true>(front[p], p, 1.0f);
  }
  const int32 target = own_column(rows.targets[r], 0, width);
  const float at_target = target >= 0 ? row[target] : 0.0f;
  const Softmax all = join(own, 1.0f, shared);

  // The second pass goes from the front to the end, and writes over what it has read. Every thread
  // has read the front pieces before join().
  T* out = reinterpret_cast<T*>(row);
  const float weight = rows.weights ? rows.weights[r] : 1.0f;
  const float shift = shift_of(all.max);
  const float scale = static_cast<float>(weight / all.sum);
  InPlace<T> in_place;
#pragma unroll
  for (int32 p = 0; p < kFront; ++p) {
    if (p >= pieces) break;
    in_place.before_writing(p);
    write_ce<kAligned>(out, front[p], p, width, shift, scale, target, weight);
  }
#pragma unroll 1
  for (int32 p = kFront; p < pieces; ++p) {
    Piece x;
    if (p >= first_kept) {
#pragma unroll
      for (int32 c = 0; c < kPieceFours; ++c)
        x.four[c] = memory[(p - first_kept) * piece_fours() + c * blockDim.x + threadIdx.x];
    } else {
      x = load_piece(row, p, width, kAligned);
    }
    in_place.before_writing(p);
    write_ce<kAligned>(out, x, p, width, shift, scale, target, weight);
  }

  if (threadIdx.x == 0) {
    const double log_sum = log(all.sum);
    rows.log_prob[r] = static_cast<double>(at_target) - all.max - log_sum;
    if (rows.entropy) rows.entropy[r] = log_sum - all.moment / all.sum;
    rows.correct[r] = all.first == target && all.sum == all.sum ? 1.0 : 0.0;
  }
}

template <class T>
__device__ inline void ce_rows(float* logits, int64 width, int32 kept, const CeRows& rows) {
  extern __shared__ Pack<float> memory[];
  __shared__ SoftmaxShared shared;
  float* row = logits + blockIdx.x * width;
  if (width % 4 == 0)
    ce_row<T, true, kFrontPieces>(row, static_cast<int32>(width), kept, rows, memory, shared);
  else
    ce_row<T, false, 1>(row, static_cast<int32>(width), 0, rows, memory, shared);
}

template <class T, bool kAligned>
__device__ inline void ce_gradient(float* row, int32 width, int32 target, float max, double sum,
                                   float weight) {
  const float scale = static_cast<float>(weight / sum);
  InPlace<T> in_place;
  const int32 pieces = pieces_of(width);
#pragma unroll 1
  for (int32 p = 0; p < pieces; ++p) {
    const Piece x = load_piece(row, p, width, kAligned);
    in_place.before_writing(p);
    write_ce<kAligned>(reinterpret_cast<T*>(row), x, p, width, shift_of(max), scale, target,
                       weight);
  }
}

template <class T>
__device__ inline void ce_gradients(float* logits, int64 width, const int64* targets, int64 begin,
                                    const float* max, const double* sum, const float* weights) {
  const int64 r = blockIdx.x;
  float* row = logits + r * width;
  const int32 columns = static_cast<int32>(width);
  const int32 target = own_column(targets[r], begin, columns);
  const float weight = weights ? weights[r] : 1.0f;
  if (width % 4 == 0)
    ce_gradient<T, true>(row, columns, target, max[r], sum[r], weight);
  else
    ce_gradient<T, false>(row, columns, target, max[r], sum[r], weight);
}

}  // namespace retort::kernels

extern "C" __global__ void __launch_bounds__(512)
    retort_ce_rows_bf16(float* logits, long long width, int kept, const long long* targets,
                        const float* weights, double* log_prob, double* entropy, double* correct) {
  retort::kernels::ce_rows<retort::kernels::Bf16>(logits, width, kept,
                                                  {targets, weights, log_prob, entropy, correct});
}
extern "C" __global__ void __launch_bounds__(512)
    retort_ce_rows_f32(float* logits, long long width, int kept, const long long* targets,
                       const float* weights, double* log_prob, double* entropy, double* correct) {
  retort::kernels::ce_rows<float>(logits, width, kept,
                                  {targets, weights, log_prob, entropy, correct});
}

extern "C" __global__ void __launch_bounds__(1024)
    retort_ce_rows_statistics(const float* logits, long long width, const long long* targets,
                              long long begin, float inv_temperature, float* max, double* sum,
                              double* moment, double* target_logit, long long* first) {
  using namespace retort::kernels;
  __shared__ SoftmaxShared shared;
  const int64 r = blockIdx.x;
  const float* row = logits + r * width;
  const int32 columns = static_cast<int32>(width);
  const Softmax all = row_statistics(row, columns, inv_temperature, moment != nullptr, shared);
  if (threadIdx.x != 0) return;
  max[r] = all.max;
  sum[r] = all.sum;
  if (moment) moment[r] = all.moment;
  const int32 target = own_column(targets[r], begin, columns);
  target_logit[r] = target >= 0 ? row[target] : 0.0f;
  first[r] = columns > 0 ? begin + all.first : 0x7fffffffffffffffll;
}

extern "C" __global__ void __launch_bounds__(1024)
    retort_ce_rows_gradient_bf16(float* logits, long long width, const long long* targets,
                                 long long begin, const float* max, const double* sum,
                                 const float* weights) {
  retort::kernels::ce_gradients<retort::kernels::Bf16>(logits, width, targets, begin, max, sum,
                                                       weights);
}
extern "C" __global__ void __launch_bounds__(1024)
    retort_ce_rows_gradient_f32(float* logits, long long width, const long long* targets,
                                long long begin, const float* max, const double* sum,
                                const float* weights) {
  retort::kernels::ce_gradients<float>(logits, width, targets, begin, max, sum, weights);
}
