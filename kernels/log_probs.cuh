// Log-probabilities of rows' targets at a temperature, and their gradient over the logits.
//
// retort_log_prob_rows: log_prob[r] = x[target] - log sum, entropy[r] = log sum - sum(x e) / sum,
//   with x = (logit - max) / T, e = exp(x) (0 below e^-64); max and sum for the gradient.
//   Shapes: logits [R, V] float32, rows V apart; targets [R] int64; log_prob, entropy (or null),
//     max [R] float32, sum [R] float64. Bytes a row: 4 V read.
//   A split vocabulary takes retort_ce_rows_statistics (cross_entropy.cuh), which has 1 / T too.
// retort_log_prob_rows_gradient_{bf16,f32}: given the incoming gradients g of log_prob and h of
//   entropy (null: none, then entropy may be null too), [R] float32, and the whole row's max, sum,
//   entropy: (g (1[target] - p) - h p (log p + entropy)) / T over this rank's columns [begin,
//   begin + V), in float32 in place or bf16 over the front of the row's own memory (rows 2 V
//   elements apart). Bytes a row: 4 V read, 2 V (4 V) written.
// Launch: a block a row, blockDim.x a multiple of 32 up to 1,024; 512 is best. H100, 2026-11-26,
//   [2048, 151936]: 2,990 GB/s (256 threads 2,531), the gradient in bf16 2,918 (any block 2,894 to
//   2,934).
#pragma once

#include "kernels/row_softmax.cuh"

namespace retort::kernels {

// A row's numbers, from its softmax (without the target's own part):
//   gradient = e factor (slope (x + offset) - incoming)
struct LogProbRow {
  float shift;
  float scale;
  float factor;
  float incoming;
  float slope;
  float offset;
  int32 target;
  float at_target;
};

template <class T, bool kAligned>
__device__ inline void log_prob_gradient(float* row, int32 width, const LogProbRow& of) {
  T* out = reinterpret_cast<T*>(row);
  InPlace<T> in_place;
  const int32 pieces = pieces_of(width);
#pragma unroll 1
  for (int32 p = 0; p < pieces; ++p) {
    const Piece piece = load_piece(row, p, width, kAligned);
    in_place.before_writing(p);
#pragma unroll
    for (int32 c = 0; c < kPieceFours; ++c) {
      Pack<float> g;
#pragma unroll
      for (int32 i = 0; i < 4; ++i) {
        // An id that is never drawn has x = -inf, and no part in this.
        const float x = (piece.four[c].v[i] - of.shift) * of.scale;
        const float inner = of.slope * (fmaxf(x, 2 * kLogSmallest) + of.offset) - of.incoming;
        g.v[i] = exp_shifted(x) * of.factor * inner;
      }
      const int32 column = column_of(p, c);
      add_at_target(g, column, of.target, of.at_target);
      store_four<kAligned>(out, column, width, g);
    }
  }
}

template <class T>
__device__ inline void log_prob_gradients(float* logits, int64 width, const int64* targets,
                                          int64 begin, float inv_temperature, const float* max,
                                          const double* sum, const float* entropy,
                                          const float* incoming, const float* of_entropy) {
  const int64 r = blockIdx.x;
  const int32 columns = static_cast<int32>(width);
  // What does not depend on the column is formed once for the row.
  LogProbRow of;
  of.shift = shift_of(max[r]);
  of.scale = inv_temperature;
  of.factor = static_cast<float>(1.0 / sum[r]);
  of.incoming = incoming[r] * inv_temperature;
  of.slope = of_entropy ? -of_entropy[r] * inv_temperature : 0.0f;
  of.offset = of_entropy ? static_cast<float>(entropy[r] - log(sum[r])) : 0.0f;
  of.target = own_column(targets[r], begin, columns);
  of.at_target = of.incoming;
  float* row = logits + r * width;
  if (width % 4 == 0)
    log_prob_gradient<T, true>(row, columns, of);
  else
    log_prob_gradient<T, false>(row, columns, of);
}

}  // namespace retort::kernels

extern "C" __global__ void __launch_bounds__(1024)
    retort_log_prob_rows(const float* logits, long long width, const long long* targets,
                         float inv_temperature, float* log_prob, float* entropy, float* max,
                         double* sum) {
  using namespace retort::kernels;
  __shared__ SoftmaxShared shared;
  const int64 r = blockIdx.x;
  const int32 columns = static_cast<int32>(width);
  const float* row = logits + r * width;
  const Softmax all = row_statistics(row, columns, inv_temperature, entropy != nullptr, shared);
  if (threadIdx.x != 0) return;

  const int32 target = own_column(targets[r], 0, columns);
  const double at_target = target >= 0 ? row[target] : 0.0f;
  const double log_sum = log(all.sum);
  log_prob[r] = static_cast<float>((at_target - all.max) * inv_temperature - log_sum);
  if (entropy) entropy[r] = static_cast<float>(log_sum - all.moment / all.sum);
  max[r] = all.max;
  sum[r] = all.sum;
}

extern "C" __global__ void __launch_bounds__(1024)
    retort_log_prob_rows_gradient_bf16(float* logits, long long width, const long long* targets,
                                       long long begin, float inv_temperature, const float* max,
                                       const double* sum, const float* entropy,
                                       const float* incoming, const float* of_entropy) {
  retort::kernels::log_prob_gradients<retort::kernels::Bf16>(
      logits, width, targets, begin, inv_temperature, max, sum, entropy, incoming, of_entropy);
}
extern "C" __global__ void __launch_bounds__(1024)
    retort_log_prob_rows_gradient_f32(float* logits, long long width, const long long* targets,
                                      long long begin, float inv_temperature, const float* max,
                                      const double* sum, const float* entropy,
                                      const float* incoming, const float* of_entropy) {
  retort::kernels::log_prob_gradients<float>(logits, width, targets, begin, inv_temperature, max,
                                             sum, entropy, incoming, of_entropy);
}
