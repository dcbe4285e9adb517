#include "recipes/losses/detail/aten_divergence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/nansum.h>

#include "base/error.h"

namespace retort::losses::detail {
namespace {

at::Tensor probabilities(const Side& side) {
  return side.e * as_column(side.sum.reciprocal(), side.e);
}

// log(a / b), 0 where a is 0.
at::Tensor log_ratio(const at::Tensor& a, const at::Tensor& b) {
  return (a / b).masked_fill_(a == 0, 1).log_();
}

// a / b, 0 where a is 0.
at::Tensor ratio(const at::Tensor& a, const at::Tensor& b) {
  return (a / b).masked_fill_(a == 0, 0);
}

// Returns the mixture that loss.type compares with.
at::Tensor mixture(const RowLoss& loss, const at::Tensor& p, const at::Tensor& q) {
  return loss.type == DivergenceType::kSkewedReverseKl ? q + loss.mix * (p - q)
                                                       : p + loss.mix * (q - p);
}

// [n] sum of e (a - b). Where e is 0 the difference may be infinite; the product is NaN then and is
// left out. A row whose logits are NaN still shows it, in its normaliser.
at::Tensor weighted_difference(const at::Tensor& e, const at::Tensor& a, const at::Tensor& b) {
  return at::nansum((a - b).mul_(e), 1);
}

}  // namespace

DivergenceSums divergence_sums(const RowLoss& loss, const Side& s, const Side& t) {
  if (loss.type == DivergenceType::kForwardKl) return {weighted_difference(t.e, t.x, s.x), {}};
  if (loss.type == DivergenceType::kReverseKl) return {weighted_difference(s.e, s.x, t.x), {}};

  // The other divergences compare probabilities, not logits.
  const at::Tensor p = probabilities(s);
  const at::Tensor q = probabilities(t);
  if (loss.type == DivergenceType::kTvd) {
    const at::Tensor d = p - q;
    return {d.abs().sum(1), (p * d.sign()).sum(1)};
  }

  // The divergences that are left compare with a mixture M of the two.
  const at::Tensor m = mixture(loss, p, q);
  if (loss.type == DivergenceType::kJsd)
    return {(q * log_ratio(q, m)).sum(1), (p * log_ratio(p, m)).sum(1)};
  if (loss.type == DivergenceType::kSkewedKl)
    return {(q * log_ratio(q, m)).sum(1), (p * ratio(q, m)).sum(1)};
  RETORT_CHECK(loss.type == DivergenceType::kSkewedReverseKl);
  const at::Tensor log = log_ratio(p, m);
  return {(p * log).sum(1), (p * (log - loss.mix * ratio(p, m))).sum(1)};
}

RowMoments divergence_moments(const RowLoss& loss, const DivergenceSums& sums, const Side& s,
                              const Side& t) {
  const auto& [first, second] = sums;
  const double mix = loss.mix;
  // log q - log p = (x(q) - x(p)) - constant
  const at::Tensor constant = t.sum.log() - s.sum.log();

  // `mean` is the mean under p of the expression from which divergence_gradient subtracts it.
  switch (loss.type) {
    case DivergenceType::kForwardKl: return {.value = first / t.sum - constant, .mean = {}};
    case DivergenceType::kReverseKl:
      return {.value = first / s.sum + constant, .mean = first / s.sum + constant};
    case DivergenceType::kJsd:
      return {.value = mix * first + (1 - mix) * second, .mean = (1 - mix) * second};
    case DivergenceType::kSkewedKl:
    case DivergenceType::kSkewedReverseKl: return {.value = first, .mean = second};
    case DivergenceType::kTvd: return {.value = 0.5 * first, .mean = second};
  }
  __builtin_unreachable();
}

at::Tensor divergence_gradient(const RowLoss& loss, const RowMoments& moments, const Side& s,
                               const Side& t) {
  at::Tensor p = probabilities(s);
  if (loss.type == DivergenceType::kForwardKl)
    return p.addcmul_(t.e, as_column(t.sum.reciprocal(), t.e), -1);
  if (loss.type == DivergenceType::kReverseKl) {
    const at::Tensor shift = moments.mean - (t.sum.log() - s.sum.log());
    return (s.x - t.x).sub_(as_column(shift, p)).mul_(p).masked_fill_(p == 0, 0);
  }

  const at::Tensor q = probabilities(t);
  // The chain rule of the softmax: d f / d logit_i = p_i (d f / d p_i - the mean of that under p).
  // Whatever is the same for all i falls out with the mean.
  const at::Tensor mean = as_column(moments.mean, p);
  if (loss.type == DivergenceType::kTvd) return (p - q).sign_().sub_(mean).mul_(p).mul_(0.5);

  const at::Tensor m = mixture(loss, p, q);
  if (loss.type == DivergenceType::kJsd)
    return log_ratio(p, m).mul_(1 - loss.mix).sub_(mean).mul_(p);
  if (loss.type == DivergenceType::kSkewedKl)
    return ratio(q, m).sub_(mean).mul_(p).mul_(loss.mix - 1);
  return log_ratio(p, m).sub_(ratio(p, m), loss.mix).sub_(mean).mul_(p);
}

}  // namespace retort::losses::detail
