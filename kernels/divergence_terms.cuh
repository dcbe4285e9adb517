// The formulas of divergence.cuh, a piece of a row at a time: `type` is a number of the launch, and
// is told apart once for a piece's 16 columns.
#pragma once

#include "kernels/row_softmax.cuh"

namespace retort::kernels {

enum class Divergence { kForwardKl, kReverseKl, kJsd, kSkewedKl, kSkewedReverseKl, kTvd };

__device__ inline bool is_kl(Divergence type) {
  return type == Divergence::kForwardKl || type == Divergence::kReverseKl;
}

// Returns what has been summed of e (x - y) when e's maximum moves by `by` / T and the other side's
// by `other`; `sum` is that of e before.
__device__ inline double moved(double first, double sum, float by, float other) {
  if (sum == 0) return first;
  const double all = first + sum * (static_cast<double>(by) - other);
  const float factor = exp_shifted(by);
  // What vanishes may be infinite, but a NaN stays.
  return factor == 0 && all == all ? 0.0 : all * factor;
}

// The sum of e (x - y) over a piece, x and e of one side, y of the other.
__device__ inline double weighted_difference(const Piece& one, const Piece& other, float shift,
                                             float scale, float other_shift, float other_scale) {
  float sums[4] = {};
#pragma unroll
  for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
    for (int32 i = 0; i < 4; ++i) {
      const float x = (one.four[c].v[i] - shift) * scale;
      const float y = (other.four[c].v[i] - other_shift) * other_scale;
      const float e = exp_shifted(x);
      sums[i] += e == 0 ? 0.0f : e * (x - y);
    }
  return static_cast<double>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// A thread's softmaxes of both sides, and `first` of the KLs: forward KL is weighted with the
// teacher's e, reverse KL with the student's.
struct PairSums {
  Divergence type;
  float student_scale;
  float teacher_scale;
  Softmax student;
  Softmax teacher;
  double first = 0;

  __device__ void move_to(float student_max, float teacher_max) {
    if (!is_kl(type) || (student_max == student.max && teacher_max == teacher.max)) return;
    const float by_s = (shift_of(student.max) - shift_of(student_max)) * student_scale;
    const float by_t = (shift_of(teacher.max) - shift_of(teacher_max)) * teacher_scale;
    if (type == Divergence::kForwardKl)
      first = moved(first, teacher.sum, by_t, by_s);
    else
      first = moved(first, student.sum, by_s, by_t);
  }

  __device__ void add(const Piece& s, const Piece& t, int32 index) {
    move_to(fmaxf(top_of(s), student.max), fmaxf(top_of(t), teacher.max));
    student.add<true>(s, index, student_scale);
    teacher.add<false>(t, index, teacher_scale);
    const float student_shift = shift_of(student.max);
    const float teacher_shift = shift_of(teacher.max);
    if (type == Divergence::kForwardKl)
      first +=
          weighted_difference(t, s, teacher_shift, teacher_scale, student_shift, student_scale);
    else if (type == Divergence::kReverseKl)
      first +=
          weighted_difference(s, t, student_shift, student_scale, teacher_shift, teacher_scale);
  }
};

// One side's softmax, to form its probabilities from logits.
struct Side {
  float shift;
  float scale;  // 1 / T
  float inverse;

  __device__ Side(double max, double sum, float scale)
      : shift(shift_of(static_cast<float>(max))),
        scale(scale),
        inverse(static_cast<float>(1.0 / sum)) {}

  __device__ float exponent(float logit) const { return (logit - shift) * scale; }
  __device__ float probability(float exponent) const { return exp_shifted(exponent) * inverse; }
};

// log(a / b) and a / b, 0 where a is 0.
__device__ inline float log_ratio(float a, float b) {
  return a == 0 ? 0.0f : logf(__fdividef(a, b));
}
__device__ inline float ratio(float a, float b) { return a == 0 ? 0.0f : __fdividef(a, b); }
__device__ inline float sign_of(float x) { return x > 0 ? 1.0f : (x < 0 ? -1.0f : x * 0); }

template <Divergence D>
__device__ inline float mixture(float p, float q, float mix) {
  return D == Divergence::kSkewedReverseKl ? q + mix * (p - q) : p + mix * (q - p);
}

// Adds an element's part of first and second.
template <Divergence D>
__device__ inline void add_terms(float p, float q, float mix, float& first, float& second) {
  if constexpr (D == Divergence::kTvd) {
    const float d = p - q;
    first += fabsf(d);
    second += p * sign_of(d);
  } else {
    const float m = mixture<D>(p, q, mix);
    if constexpr (D == Divergence::kJsd) {
      first += q * log_ratio(q, m);
      second += p * log_ratio(p, m);
    } else if constexpr (D == Divergence::kSkewedKl) {
      const float part = ratio(q, m);
      first += q == 0 ? 0.0f : q * logf(part);
      second += p * part;
    } else {
      const float part = ratio(p, m);
      const float log = p == 0 ? 0.0f : logf(part);
      first += p * log;
      second += p * (log - mix * part);
    }
  }
}

struct TwoSums {
  double first;
  double second;
};

// Adds a piece's part of first and second.
template <Divergence D>
__device__ inline void add_piece(const Piece& s, const Piece& t, const Side& student,
                                 const Side& teacher, float mix, TwoSums& sums) {
#pragma unroll
  for (int32 c = 0; c < kPieceFours; ++c) {
    float first = 0;
    float second = 0;
#pragma unroll
    for (int32 i = 0; i < 4; ++i) {
      const float p = student.probability(student.exponent(s.four[c].v[i]));
      const float q = teacher.probability(teacher.exponent(t.four[c].v[i]));
      add_terms<D>(p, q, mix, first, second);
    }
    sums.first += first;
    sums.second += second;
  }
}

// The same for a type that only the launch knows, and that is no KL.
__device__ inline void add_piece(Divergence type, const Piece& s, const Piece& t,
                                 const Side& student, const Side& teacher, float mix,
                                 TwoSums& sums) {
  switch (type) {
    case Divergence::kJsd: return add_piece<Divergence::kJsd>(s, t, student, teacher, mix, sums);
    case Divergence::kSkewedKl:
      return add_piece<Divergence::kSkewedKl>(s, t, student, teacher, mix, sums);
    case Divergence::kSkewedReverseKl:
      return add_piece<Divergence::kSkewedReverseKl>(s, t, student, teacher, mix, sums);
    default: return add_piece<Divergence::kTvd>(s, t, student, teacher, mix, sums);
  }
}

// d(divergence) / d(logit / T) of an element. `mean` of reverse KL is less the constant.
template <Divergence D>
__device__ inline float element_gradient(float x, float y, const Side& student, const Side& teacher,
                                         float mix, float mean) {
  const float p = student.probability(x);
  if constexpr (D == Divergence::kReverseKl) {
    return p == 0 ? 0.0f : p * ((x - y) - mean);
  } else {
    const float q = teacher.probability(y);
    if constexpr (D == Divergence::kForwardKl) {
      return p - q;
    } else if constexpr (D == Divergence::kTvd) {
      return 0.5f * (p * (sign_of(p - q) - mean));
    } else {
      const float m = mixture<D>(p, q, mix);
      if constexpr (D == Divergence::kJsd) {
        return p * ((1.0f - mix) * log_ratio(p, m) - mean);
      } else if constexpr (D == Divergence::kSkewedKl) {
        return (mix - 1.0f) * (p * (ratio(q, m) - mean));
      } else {
        const float part = ratio(p, m);
        const float log = p == 0 ? 0.0f : logf(part);
        return p * ((log - mix * part) - mean);
      }
    }
  }
}

// Forms the gradient of a piece, which takes the place of t.
template <Divergence D>
__device__ inline void gradient_piece(const Piece& s, Piece& t, const Side& student,
                                      const Side& teacher, float mix, float mean) {
#pragma unroll
  for (int32 c = 0; c < kPieceFours; ++c)
#pragma unroll
    for (int32 i = 0; i < 4; ++i) {
      const float x = student.exponent(s.four[c].v[i]);
      const float y = teacher.exponent(t.four[c].v[i]);
      t.four[c].v[i] = element_gradient<D>(x, y, student, teacher, mix, mean);
    }
}

__device__ inline void gradient_piece(Divergence type, const Piece& s, Piece& t,
                                      const Side& student, const Side& teacher, float mix,
                                      float mean) {
  switch (type) {
    case Divergence::kForwardKl:
      return gradient_piece<Divergence::kForwardKl>(s, t, student, teacher, mix, mean);
    case Divergence::kReverseKl:
      return gradient_piece<Divergence::kReverseKl>(s, t, student, teacher, mix, mean);
    case Divergence::kJsd:
      return gradient_piece<Divergence::kJsd>(s, t, student, teacher, mix, mean);
    case Divergence::kSkewedKl:
      return gradient_piece<Divergence::kSkewedKl>(s, t, student, teacher, mix, mean);
    case Divergence::kSkewedReverseKl:
      return gradient_piece<Divergence::kSkewedReverseKl>(s, t, student, teacher, mix, mean);
    case Divergence::kTvd:
      return gradient_piece<Divergence::kTvd>(s, t, student, teacher, mix, mean);
  }
}

// The divergence and the mean under p of its derivative.
struct Moments {
  double value;
  double mean;
};

// `constant` is the log sum of the teacher less that of the student.
__device__ inline Moments moments_of(Divergence type, double mix, const TwoSums& sums,
                                     double student_sum, double teacher_sum, double constant) {
  switch (type) {
    case Divergence::kForwardKl: return {sums.first / teacher_sum - constant, 0};
    case Divergence::kReverseKl: {
      const double value = sums.first / student_sum + constant;
      return {value, value};
    }
    case Divergence::kJsd:
      return {mix * sums.first + (1 - mix) * sums.second, (1 - mix) * sums.second};
    case Divergence::kTvd: return {0.5 * sums.first, sums.second};
    default: return {sums.first, sums.second};
  }
}

}  // namespace retort::kernels
