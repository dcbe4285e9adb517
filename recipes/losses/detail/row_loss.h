// A divergence's options as the row kernels and the ATen path want them, and the error for a row
// that cannot be.
#pragma once

#include <limits>

#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/divergence.h"

namespace retort::losses::detail {

// Special cases resolved (jsd beta 0 and 1, lambda 0); weights of the gradient as kd_ratio, T and
// T^2 make them.
RowLoss row_loss(const DivergenceOptions& options);
// The factor of the divergence: T^2, or 1.
double kd_factor(const DivergenceOptions& options);
// loss = (1 - kd_ratio) CE + kd_ratio KD; an infinite CE that is not asked for does not make NaN.
// Of doubles, or of float64 tensors without dimensions.
template <class Number>
Number mixed_loss(double kd_ratio, const Number& kd_sum, const Number& ce_sum) {
  Number sum = kd_sum * kd_ratio;
  if (kd_ratio < 1) sum = sum + ce_sum * (1 - kd_ratio);
  return sum;
}

[[noreturn]] void refuse_row(RowStatus status, int64_t row);

// A row that is refused as one number, for whoever reads it later: the first of them is the least.
inline constexpr double kNoRowRefused = std::numeric_limits<double>::infinity();
inline constexpr int64_t kRowStatuses = 16;  // at most; the code is kRowStatuses * row + status
// refuse_row() for the number, unless it is kNoRowRefused.
void refuse_coded(double code);

}  // namespace retort::losses::detail
