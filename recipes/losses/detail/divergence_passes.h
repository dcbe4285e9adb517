// The two passes of a divergence over one row: its value, then its gradient. Formulas:
// docs/losses.md. Included only by row_kernels_<isa>.cc.
//
// q = teacher, p = student. Shifted logits are (x - max) / T, so that
//   log q - log p = (xt - xs) - (log sum_t - log sum_s),
// whose constant is kept in double: rounding of a log-normaliser never enters element-wise.
#pragma once

#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/detail/vector_math.h"

namespace retort::losses::detail::RETORT_ISA {

// One side's softmax: exp((x - max) * scale) / sum.
struct Side {
  const float* x;
  float max;
  float scale;
  double sum = 0;

  __attribute__((always_inline)) Vec shifted(int64_t i, int64_t left) const {
    return (load(x + i, left) - max) * scale;
  }
  double log_sum() const { return __builtin_log(sum); }
  float inverse() const { return static_cast<float>(1.0 / sum); }
};

static double sum_exp(const Side& side, int64_t begin, int64_t end) {
  Sum sum;
  for (int64_t i = begin; i < end; i += kLanes)
    sum.add(exp_negative(side.shifted(i, end - i)));
  return sum.total();
}

static Side softmax_side(const float* x, int64_t n, float scale) {
  Side side{x, max_of(x, n), scale};
  side.sum = sum_exp(side, 0, n);
  return side;
}

// value, and the mean under p of d(value)/d(p) where the gradient needs it.
struct Moments {
  double value = 0;
  double mean = 0;
};

RETORT_INLINE Vec zero_unless(IntVec mask, Vec v) { return mask ? v : Vec{}; }
// log(a / b), 0 where a is 0.
RETORT_INLINE Vec log_ratio(Vec a, Vec b) { return log_positive(a > 0.0f ? a / b : splat(1.0f)); }

template <DivergenceType D>
static Moments divergence_value(const Side& s, const Side& t, int64_t n, float mix) {
  // log q - log p = (xt - xs) - constant
  const float inv_s = s.inverse();
  const float inv_t = t.inverse();
  const double constant = t.log_sum() - s.log_sum();

  // The KLs sum over unnormalised probabilities, the others need p and q themselves.
  Sum first, second;
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec xs = s.shifted(i, n - i);
    const Vec xt = t.shifted(i, n - i);
    if constexpr (D == DivergenceType::kForwardKl) {
      const Vec q = exp_negative(xt);
      first.add(zero_unless(q > 0.0f, q * (xt - xs)));
    } else if constexpr (D == DivergenceType::kReverseKl) {
      const Vec p = exp_negative(xs);
      first.add(zero_unless(p > 0.0f, p * (xs - xt)));
    } else {
      const Vec p = exp_negative(xs) * inv_s;
      const Vec q = exp_negative(xt) * inv_t;
      if constexpr (D == DivergenceType::kJsd) {
        const Vec m = p + mix * (q - p);
        first.add(q * log_ratio(q, m));
        second.add(p * log_ratio(p, m));
      } else if constexpr (D == DivergenceType::kSkewedKl) {
        const Vec m = p + mix * (q - p);
        first.add(q * log_ratio(q, m));
        second.add(p * (q > 0.0f ? q / m : Vec{}));
      } else if constexpr (D == DivergenceType::kSkewedReverseKl) {
        const Vec m = q + mix * (p - q);
        const Vec ratio = p > 0.0f ? p / m : Vec{};
        const Vec log = log_ratio(p, m);
        first.add(p * log);
        second.add(p * (log - mix * ratio));
      } else {
        const Vec d = p - q;
        first.add(d < 0.0f ? -d : d);
        second.add(d > 0.0f ? p : (d < 0.0f ? -p : Vec{}));
      }
    }
  }

  // The value, and the mean under p of its derivative, from the two sums.
  const double a = first.total();
  const double b = second.total();
  const double beta = mix;
  switch (D) {
    case DivergenceType::kForwardKl: return {a / t.sum - constant, 0};
    case DivergenceType::kReverseKl: return {a / s.sum + constant, a / s.sum + constant};
    case DivergenceType::kJsd: return {beta * a + (1 - beta) * b, (1 - beta) * b};
    case DivergenceType::kSkewedKl: return {a, b};  // of q / M, which enters with -(1 - lambda)
    case DivergenceType::kSkewedReverseKl: return {a, b};  // of log(p / M) - lambda p / M
    case DivergenceType::kTvd: return {0.5 * a, b};        // of sign(p - q), which enters with 1/2
  }
  __builtin_unreachable();
}

// The cross-entropy's part of the gradient: there is none, it comes from the divergence's own
// softmax (temperature 1, whole vocabulary), or from a softmax of its own.
enum class CePart { kNone, kShared, kSeparate };

// d(divergence)/d(shifted student logit), for one vector.
template <DivergenceType D>
RETORT_INLINE Vec divergence_gradient(Vec xs, Vec xt, Vec p, float inv_t, float mix, float mean,
                                      float reverse_shift) {
  if constexpr (D == DivergenceType::kReverseKl) {
    return zero_unless(p > 0.0f, p * ((xs - xt) - reverse_shift));
  } else {
    const Vec q = exp_negative(xt) * inv_t;
    if constexpr (D == DivergenceType::kForwardKl) {
      return p - q;
    } else if constexpr (D == DivergenceType::kJsd) {
      return p * ((1.0f - mix) * log_ratio(p, p + mix * (q - p)) - mean);
    } else if constexpr (D == DivergenceType::kSkewedKl) {
      const Vec ratio = q > 0.0f ? q / (p + mix * (q - p)) : Vec{};
      return (mix - 1.0f) * (p * (ratio - mean));
    } else if constexpr (D == DivergenceType::kSkewedReverseKl) {
      const Vec m = q + mix * (p - q);
      const Vec ratio = p > 0.0f ? p / m : Vec{};
      return p * ((log_ratio(p, m) - mix * ratio) - mean);
    } else {
      const Vec d = p - q;
      const Vec sign = d > 0.0f ? splat(1.0f) : (d < 0.0f ? splat(-1.0f) : Vec{});
      return 0.5f * (p * (sign - mean));
    }
  }
}

struct GradientWeights {
  float kd;
  float ce;  // times the cross-entropy side's softmax
  const Side* ce_side;
};

// out[0, n) = kd * d(divergence)/d(logit) + ce * softmax; out may be s.x.
template <DivergenceType D, CePart Ce>
static void divergence_gradient_pass(const Side& s, const Side& t, int64_t n, float mix,
                                     const Moments& moments, const GradientWeights& w, float* out) {
  const float inv_s = s.inverse();
  const float inv_t = t.inverse();
  const float mean = static_cast<float>(moments.mean);
  // log p - log q - KL(p || q) = (xs - xt) + constant - KL
  const float reverse_shift = static_cast<float>(moments.mean - (t.log_sum() - s.log_sum()));
  const float ce_scale = Ce == CePart::kSeparate ? w.ce * w.ce_side->inverse() : w.ce;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const Vec xs = s.shifted(i, left);
    const Vec xt = t.shifted(i, left);
    const Vec p = exp_negative(xs) * inv_s;
    Vec g = w.kd * divergence_gradient<D>(xs, xt, p, inv_t, mix, mean, reverse_shift);
    if constexpr (Ce == CePart::kShared) g = g + ce_scale * p;
    if constexpr (Ce == CePart::kSeparate)
      g = g + ce_scale * exp_negative(w.ce_side->shifted(i, left));
    store(out + i, left, g);
  }
}

// out[i] = a * exp(first) + b * exp(second) over [begin, end), either weight may be 0; out may be
// the sides' x.
static void softmax_pass(const Side& first, float a, const Side& second, float b, int64_t begin,
                         int64_t end, float* out) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t left = end - i;
    Vec g = a * exp_negative(first.shifted(i, left));
    if (b != 0) g = g + b * exp_negative(second.shifted(i, left));
    store(out + i, left, g);
  }
}

template <class F>
RETORT_INLINE auto with_divergence(DivergenceType type, const F& f) {
  switch (type) {
    case DivergenceType::kForwardKl: return f.template operator()<DivergenceType::kForwardKl>();
    case DivergenceType::kReverseKl: return f.template operator()<DivergenceType::kReverseKl>();
    case DivergenceType::kJsd: return f.template operator()<DivergenceType::kJsd>();
    case DivergenceType::kSkewedKl: return f.template operator()<DivergenceType::kSkewedKl>();
    case DivergenceType::kSkewedReverseKl:
      return f.template operator()<DivergenceType::kSkewedReverseKl>();
    case DivergenceType::kTvd: return f.template operator()<DivergenceType::kTvd>();
  }
  __builtin_unreachable();
}

}  // namespace retort::losses::detail::RETORT_ISA
