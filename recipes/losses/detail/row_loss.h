// A divergence's options as the row kernels and the ATen path want them, and the error for a row
// that cannot be.
#pragma once

#include "recipes/losses/detail/row_kernels.h"
#include "recipes/losses/divergence.h"

namespace retort::losses::detail {

// Special cases resolved (jsd beta 0 and 1, lambda 0); weights of the gradient as kd_ratio, T and
// T^2 make them.
RowLoss row_loss(const DivergenceOptions& options);
// What the divergence is multiplied by: T^2, or 1.
double kd_factor(const DivergenceOptions& options);
// loss = (1 - kd_ratio) CE + kd_ratio KD; an infinite CE that is not asked for does not make NaN.
double mixed_loss(double kd_ratio, double kd_sum, double ce_sum);

[[noreturn]] void refuse_row(RowStatus status, int64_t row);

}  // namespace retort::losses::detail
