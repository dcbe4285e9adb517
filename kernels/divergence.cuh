// Divergences between a teacher's and a student's softmax over the columns that both have, the
// student's cross-entropy beside, and the gradient of both over the student's logits. Formulas:
// docs/losses.md, recipes/losses/detail/aten_divergence.h.
//
// p is the student's softmax of the first `common` columns and q the teacher's, each at its own
// temperature; x = (logit - max) / T, e = exp(x), 0 below e^-64; M the mixture mix q + (1 - mix) p,
// of the skewed reverse KL mix p + (1 - mix) q. The cross-entropy is that of all the student's
// columns at temperature 1; the teacher's columns from `common` on are masked.
//
// `type` is the DivergenceType's number, with first and second the sums of aten_divergence.h:
//   0 forward KL, 1 reverse KL, 2 JSD, 3 skewed KL, 4 skewed reverse KL, 5 total variation
//
// retort_divergence_rows_{bf16,f32}: whole vocabularies. numbers [7, R] float64: the divergence,
//   log p(target), entropy, 1 where the target is the first of the largest logits, the teacher's
//   mass on its masked columns, its maximum, its sum of e. With `gradient` ce_weight (softmax -
//   1[target]) + kd_weight d(divergence) / d(logit / T) in float32 over the student's row, or in
//   bf16 over the front of the row's own memory (rows 2 Vs elements apart).
//   Bytes a row: 8 (Vs + Vt) + 2 Vs (4 Vs), the KLs; the others 12 (Vs + Vt) + 2 Vs.
// For a vocabulary of which this rank has the columns [begin, begin + Vs), three kernels:
//   retort_divergence_rows_statistics: statistics [12, R] float64, of this rank's columns: 0, 1
//     maximum and sum of e of the student's common columns, 2 to 4 maximum, sum and moment (sum of
//     x e) of the cross-entropy's softmax, 5 the target's logit (0 where another rank has it), 6 id
//     of the first of the largest logits, 7, 8 the teacher's maximum and sum, 9, 10 those of the
//     masked columns, 11 first of the KLs (0 of the others). Joined with the maxima M, a = (max -
//     M) / T of either side and f = exp(a) (a = f = 0 where max is -inf): sum f, and for 11
//     f_t (first + sum_t (a_t - a_s)) of forward KL, f_s (first + sum_s (a_s - a_t)) of reverse.
//   retort_divergence_rows_sums: [2, R] float64 first and second of the other types, from joined
//     statistics (rows 0, 1, 7, 8 are read). To be summed over the ranks.
//   retort_divergence_rows_gradient_{bf16,f32}: from joined statistics (0 to 3, 7, 8) and `mean`
//     [R] float64, RowMoments::mean (null for forward KL).
//
// Shapes: student [R, Vs], teacher [R, Vt] float32, rows their widths apart; common <= Vs, Vt;
//   targets [R] int64. Launch: a block a row, blockDim.x a multiple of 32, up to 512; 256 is best.
//   H100, 2026-11-26, bf16, [1024, 151936], before the types shared their loops: forward KL 2,979
//   GB/s (512 threads 2,948), reverse KL 3,018, total variation 3,028, JSD 2,213, bound by its
//   logarithms and divisions. ATen takes nine to eleven times as long.
// Alignment: 16-byte access to the rows whose width 4 divides.
#pragma once

#include "kernels/divergence_terms.cuh"

namespace retort::kernels {

struct DivergenceArguments {
  float* student;
  int64 student_width;
  const float* teacher;
  int64 teacher_width;
  int64 common;
  const int64* targets;
  int64 begin;
  Divergence type;
  float mix;
  float student_scale;  // 1 / T
  float teacher_scale;
  float ce_weight;
  float kd_weight;
};

// One row of the arguments.
struct DivergenceRow {
  float* student;
  const float* teacher;
  int32 student_width;
  int32 teacher_width;
  int32 common;
  bool student_aligned;
  bool teacher_aligned;
  bool shared;  // the cross-entropy's softmax is the divergence's
  int32 target;

  __device__ explicit DivergenceRow(const DivergenceArguments& a)
      : student(a.student + blockIdx.x * a.student_width),
        teacher(a.teacher + blockIdx.x * a.teacher_width),
        student_width(static_cast<int32>(a.student_width)),
        teacher_width(static_cast<int32>(a.teacher_width)),
        common(static_cast<int32>(a.common)),
        student_aligned(a.student_width % 4 == 0 && on_16_bytes(a.student)),
        teacher_aligned(a.teacher_width % 4 == 0 && on_16_bytes(a.teacher)),
        shared(a.common == a.student_width && a.student_scale == 1.0f),
        target(own_column(a.targets[blockIdx.x], a.begin, static_cast<int32>(a.student_width))) {}
};

struct DivergenceShared {
  SoftmaxShared student;
  SoftmaxShared ce;
  SoftmaxShared teacher;
  SoftmaxShared masked;
  float max[2][kMaxWarps];
  double sum[2][kMaxWarps];
};

// The row's statistics; `first` belongs to the KLs.
struct DivergenceStatistics {
  Softmax student;
  Softmax ce;
  Softmax teacher;
  Softmax masked;
  double first = 0;
};

// Columns outside of [begin, end) become -inf.
__device__ inline void keep_columns(Piece& x, int32 piece, int32 begin, int32 end) {
#pragma unroll
  for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
    for (int32 i = 0; i < 4; ++i) {
      const int32 column = column_of(piece, c) + i;
      if (column < begin || column >= end) x.four[c].v[i] = minus_infinity();
    }
}

__device__ inline DivergenceStatistics divergence_statistics(const DivergenceArguments& a,
                                                             const DivergenceRow& row,
                                                             DivergenceShared& shared) {
  Softmax ce;
  PairSums pair{a.type, a.student_scale, a.teacher_scale};
  const int32 common_pieces = pieces_of(row.common);
#pragma unroll 1
  for (int32 p = pieces_of(row.student_width) - 1; p >= 0; --p) {
    Piece s = load_piece(row.student, p, row.student_width, row.student_aligned);
    if (!row.shared) ce.add<true>(s, p, 1.0f);
    if (p >= common_pieces) continue;
    if (p == common_pieces - 1) keep_columns(s, p, 0, row.common);
    pair.add(s, load_piece(row.teacher, p, row.common, row.teacher_aligned), p);
  }

  // The threads' parts become the block's. `first` moves to the block's maxima before it is summed,
  // because it was formed below those of its thread.
  pair.move_to(block_max(pair.student.max, shared.max[0]),
               block_max(pair.teacher.max, shared.max[1]));
  DivergenceStatistics all;
  all.first = !is_kl(a.type) ? 0.0 : block_sum(pair.first, shared.sum[0]);
  all.student = join(pair.student, a.student_scale, shared.student);
  all.teacher = join(pair.teacher, a.teacher_scale, shared.teacher);
  all.ce = row.shared ? all.student : join(ce, 1.0f, shared.ce);

  // The masked columns of the teacher have a softmax of their own, from which their mass follows.
  if (row.teacher_width <= row.common) return all;
  Softmax masked;
#pragma unroll 1
  for (int32 p = pieces_of(row.teacher_width) - 1; p >= row.common / (4 * piece_fours()); --p) {
    Piece x = load_piece(row.teacher, p, row.teacher_width, row.teacher_aligned);
    keep_columns(x, p, row.common, row.teacher_width);
    masked.add<false>(x, p, a.teacher_scale);
  }
  all.masked = join(masked, a.teacher_scale, shared.masked);
  return all;
}

// The sums of first and second over the block, of the types that are no KL.
__device__ inline TwoSums divergence_sums(const DivergenceArguments& a, const DivergenceRow& row,
                                          const Side& student, const Side& teacher,
                                          DivergenceShared& shared) {
  TwoSums own{0, 0};
#pragma unroll 1
  for (int32 piece = pieces_of(row.common) - 1; piece >= 0; --piece) {
    const Piece s = load_piece(row.student, piece, row.common, row.student_aligned);
    const Piece t = load_piece(row.teacher, piece, row.common, row.teacher_aligned);
    add_piece(a.type, s, t, student, teacher, a.mix, own);
  }
  __syncthreads();  // shared.sum may be in use still
  return {block_sum(own.first, shared.sum[0]), block_sum(own.second, shared.sum[1])};
}

// `mean` is that of moments_of(), of reverse KL less its constant.
template <class T>
__device__ inline void divergence_gradient(const DivergenceArguments& a, const DivergenceRow& row,
                                           const Side& student, const Side& teacher, const Side& ce,
                                           float mean) {
  const float ce_scale = a.ce_weight * ce.inverse;
  T* out = reinterpret_cast<T*>(row.student);
  InPlace<T> in_place;
  const int32 pieces = pieces_of(row.student_width);
#pragma unroll 1
  for (int32 index = 0; index < pieces; ++index) {
    const Piece s = load_piece(row.student, index, row.student_width, row.student_aligned);
    Piece g = load_piece(row.teacher, index, row.common, row.teacher_aligned);
    in_place.before_writing(index);
    gradient_piece(a.type, s, g, student, teacher, a.mix, mean);
#pragma unroll
    for (int32 c = 0; c < kPieceFours; ++c) {
      const int32 column = column_of(index, c);
#pragma unroll
      for (int32 i = 0; i < 4; ++i)
        g.four[c].v[i] = column + i < row.common ? a.kd_weight * g.four[c].v[i] : 0.0f;
      if (a.ce_weight != 0) {
#pragma unroll
        for (int32 i = 0; i < 4; ++i)
          g.four[c].v[i] += ce_scale * exp_shifted(s.four[c].v[i] - ce.shift);
        add_at_target(g.four[c], column, row.target, -a.ce_weight);
      }
      if (row.student_aligned)
        store_four<true>(out, column, row.student_width, g.four[c]);
      else
        store_four<false>(out, column, row.student_width, g.four[c]);
    }
  }
}

// The teacher's mass on its masked columns, from their own maximum: they may have more than the
// rest.
__device__ inline double masked_mass(const DivergenceStatistics& of, float scale) {
  if (of.masked.max == minus_infinity()) return of.masked.sum * 0;
  const double gap = (static_cast<double>(of.masked.max) - of.teacher.max) * scale;
  return 1 / (1 + of.teacher.sum / of.masked.sum * exp(-gap));
}

template <class T>
__device__ inline void divergence_rows(const DivergenceArguments& a, bool gradient, int64 rows,
                                       double* numbers) {
  __shared__ DivergenceShared shared;
  const DivergenceRow row(a);
  const float at_target = row.target >= 0 ? row.student[row.target] : 0.0f;
  const DivergenceStatistics of = divergence_statistics(a, row, shared);
  double* to = numbers + blockIdx.x;
  if (threadIdx.x == 0) {
    const double log_sum = log(of.ce.sum);
    to[rows] = static_cast<double>(at_target) - of.ce.max - log_sum;
    to[2 * rows] = log_sum - of.ce.moment / of.ce.sum;
    to[3 * rows] = of.ce.first == row.target && of.ce.sum == of.ce.sum ? 1.0 : 0.0;
    to[4 * rows] = masked_mass(of, a.teacher_scale);
    to[5 * rows] = of.teacher.max;
    to[6 * rows] = of.teacher.sum;
  }

  const Side student(of.student.max, of.student.sum, a.student_scale);
  const Side teacher(of.teacher.max, of.teacher.sum, a.teacher_scale);
  // Types that are no KL are formed of probabilities, which need another reading of both rows.
  TwoSums sums{of.first, 0};
  if (!is_kl(a.type)) sums = divergence_sums(a, row, student, teacher, shared);
  const double constant = log(of.teacher.sum) - log(of.student.sum);
  const Moments moments = moments_of(a.type, a.mix, sums, of.student.sum, of.teacher.sum, constant);
  if (threadIdx.x == 0) to[0] = moments.value;
  if (!gradient) return;
  const Side ce(of.ce.max, of.ce.sum, 1.0f);
  const double mean = moments.mean - (a.type == Divergence::kReverseKl ? constant : 0.0);
  divergence_gradient<T>(a, row, student, teacher, ce, static_cast<float>(mean));
}

// The sides of joined statistics.
struct JoinedSides {
  Side student;
  Side teacher;

  __device__ JoinedSides(const DivergenceArguments& a, const double* of, int64 rows)
      : student(of[0], of[rows], a.student_scale),
        teacher(of[7 * rows], of[8 * rows], a.teacher_scale) {}
};

template <class T>
__device__ inline void divergence_gradient_rows(const DivergenceArguments& a, int64 rows,
                                                const double* statistics, const double* mean) {
  const double* of = statistics + blockIdx.x;
  const JoinedSides sides(a, of, rows);
  const Side ce(of[2 * rows], of[3 * rows], 1.0f);
  double of_row = mean ? mean[blockIdx.x] : 0.0;
  if (a.type == Divergence::kReverseKl) of_row -= log(of[8 * rows]) - log(of[rows]);
  divergence_gradient<T>(a, DivergenceRow(a), sides.student, sides.teacher, ce,
                         static_cast<float>(of_row));
}

}  // namespace retort::kernels

extern "C" __global__ void __launch_bounds__(512)
    retort_divergence_rows_bf16(float* student, long long student_width, const float* teacher,
                                long long teacher_width, long long common, const long long* targets,
                                int type, float mix, float student_scale, float teacher_scale,
                                float ce_weight, float kd_weight, int gradient, long long rows,
                                double* numbers) {
  using namespace retort::kernels;
  divergence_rows<Bf16>(
      {student, student_width, teacher, teacher_width, common, targets, 0,
       static_cast<Divergence>(type), mix, student_scale, teacher_scale, ce_weight, kd_weight},
      gradient != 0, rows, numbers);
}
extern "C" __global__ void __launch_bounds__(512)
    retort_divergence_rows_f32(float* student, long long student_width, const float* teacher,
                               long long teacher_width, long long common, const long long* targets,
                               int type, float mix, float student_scale, float teacher_scale,
                               float ce_weight, float kd_weight, int gradient, long long rows,
                               double* numbers) {
  using namespace retort::kernels;
  divergence_rows<float>(
      {student, student_width, teacher, teacher_width, common, targets, 0,
       static_cast<Divergence>(type), mix, student_scale, teacher_scale, ce_weight, kd_weight},
      gradient != 0, rows, numbers);
}

extern "C" __global__ void __launch_bounds__(512)
    retort_divergence_rows_statistics(float* student, long long student_width, const float* teacher,
                                      long long teacher_width, long long common,
                                      const long long* targets, long long begin, int type,
                                      float student_scale, float teacher_scale, long long rows,
                                      double* statistics) {
  using namespace retort::kernels;
  __shared__ DivergenceShared shared;
  const DivergenceArguments a{student, student_width, teacher,       teacher_width,
                              common,  targets,       begin,         static_cast<Divergence>(type),
                              0,       student_scale, teacher_scale, 0,
                              0};
  const DivergenceRow row(a);
  const DivergenceStatistics of = divergence_statistics(a, row, shared);
  if (threadIdx.x != 0) return;
  double* to = statistics + blockIdx.x;
  to[0] = of.student.max;
  to[rows] = of.student.sum;
  to[2 * rows] = of.ce.max;
  to[3 * rows] = of.ce.sum;
  to[4 * rows] = of.ce.moment;
  to[5 * rows] = row.target >= 0 ? row.student[row.target] : 0.0f;
  to[6 * rows] = student_width > 0 ? static_cast<double>(begin + of.ce.first) : 9007199254740992.0;
  to[7 * rows] = of.teacher.max;
  to[8 * rows] = of.teacher.sum;
  to[9 * rows] = of.masked.max;
  to[10 * rows] = of.masked.sum;
  to[11 * rows] = of.first;
}

extern "C" __global__ void __launch_bounds__(512)
    retort_divergence_rows_sums(float* student, long long student_width, const float* teacher,
                                long long teacher_width, long long common, const long long* targets,
                                long long begin, int type, float mix, float student_scale,
                                float teacher_scale, long long rows, const double* statistics,
                                double* sums) {
  using namespace retort::kernels;
  __shared__ DivergenceShared shared;
  const DivergenceArguments a{student, student_width, teacher,       teacher_width,
                              common,  targets,       begin,         static_cast<Divergence>(type),
                              mix,     student_scale, teacher_scale, 0,
                              0};
  const DivergenceRow row(a);
  const JoinedSides sides(a, statistics + blockIdx.x, rows);
  const TwoSums of = divergence_sums(a, row, sides.student, sides.teacher, shared);
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = of.first;
  sums[rows + blockIdx.x] = of.second;
}

extern "C" __global__ void __launch_bounds__(512) retort_divergence_rows_gradient_bf16(
    float* student, long long student_width, const float* teacher, long long teacher_width,
    long long common, const long long* targets, long long begin, int type, float mix,
    float student_scale, float teacher_scale, float ce_weight, float kd_weight, long long rows,
    const double* statistics, const double* mean) {
  using namespace retort::kernels;
  const DivergenceArguments a{student,  student_width, teacher,       teacher_width,
                              common,   targets,       begin,         static_cast<Divergence>(type),
                              mix,      student_scale, teacher_scale, ce_weight,
                              kd_weight};
  divergence_gradient_rows<Bf16>(a, rows, statistics, mean);
}
extern "C" __global__ void __launch_bounds__(512) retort_divergence_rows_gradient_f32(
    float* student, long long student_width, const float* teacher, long long teacher_width,
    long long common, const long long* targets, long long begin, int type, float mix,
    float student_scale, float teacher_scale, float ce_weight, float kd_weight, long long rows,
    const double* statistics, const double* mean) {
  using namespace retort::kernels;
  const DivergenceArguments a{student,  student_width, teacher,       teacher_width,
                              common,   targets,       begin,         static_cast<Divergence>(type),
                              mix,      student_scale, teacher_scale, ce_weight,
                              kd_weight};
  divergence_gradient_rows<float>(a, rows, statistics, mean);
}
