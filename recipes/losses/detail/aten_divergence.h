// The divergences between a teacher's and a student's softmax on the ATen path (aten_losses.h), for
// the columns that this rank holds. Formulas: docs/losses.md; the same arithmetic as the row
// kernels' (divergence_passes.h).
//
// Here p is the student's softmax and q the teacher's, x the logits over T, M the mixture that a
// skewed or Jensen-Shannon divergence compares with, and mix the recipe's beta or lambda:
//
//   divergence         mixture M            what DivergenceSums::first and second add up
//   -----------------  -------------------  ------------------------------------------------
//   forward KL                              e(q) (x(q) - x(p))
//   reverse KL                              e(p) (x(p) - x(q))
//   JSD                mix q + (1 - mix) p  q log(q / M)        p log(p / M)
//   skewed KL          mix q + (1 - mix) p  q log(q / M)        p q / M
//   skewed reverse KL  mix p + (1 - mix) q  p log(p / M)        p (log(p / M) - mix p / M)
//   total variation                         |p - q|             p sign(p - q)
#pragma once

#include <ATen/core/Tensor.h>

#include "recipes/losses/detail/aten_softmax.h"
#include "recipes/losses/detail/row_kernels.h"

namespace retort::losses::detail {

// The sums of a divergence over a row's columns; second is undefined for the KLs. [n], to be summed
// over the ranks.
struct DivergenceSums {
  at::Tensor first, second;
};
// Forward and reverse KL sum what needs maxima only; the others need both sides' `sum` over the
// whole vocabulary first.
inline bool sums_need_normalisers(DivergenceType type) {
  return type != DivergenceType::kForwardKl && type != DivergenceType::kReverseKl;
}
DivergenceSums divergence_sums(const RowLoss& loss, const Side& student, const Side& teacher);

// [n] float64: the divergence, and the mean under p of its derivative where the gradient needs it.
struct RowMoments {
  at::Tensor value, mean;
};
// Takes sums and normalisers that have been reduced over the ranks.
RowMoments divergence_moments(const RowLoss& loss, const DivergenceSums& sums, const Side& student,
                              const Side& teacher);

// [n, columns] d(divergence) / d(logit / T) of the student.
at::Tensor divergence_gradient(const RowLoss& loss, const RowMoments& moments, const Side& student,
                               const Side& teacher);

}  // namespace retort::losses::detail
