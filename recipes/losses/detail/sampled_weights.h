// Turns drawn ids into weighted ones, with which the code of top-k losses can compute.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "recipes/losses/teacher_signal.h"

namespace retort::losses::detail {

// The estimate sum_v w_v (log q_v - log p_v) over the drawn ids is forward KL from the normalised
// weights w_v / W, renormalised over these ids, times W = sum_v w_v, plus what does not depend on
// the student:
//   sum_v w_v (log q_v - log p_v)
//       = W sum_v w'_v (log w'_v - log p_v) + sum_v w_v (log q_v - log w'_v)
// and its gradient by the logits is W (p - w').
struct WeightedIds {
  // log w' of the distinct ids, first drawn first; behind them ids that were not drawn, with no
  // weight, up to K = min(N, common). log_tail is of nothing. On the host.
  TeacherTopK ids;
  at::Tensor distinct;  // [R] int64: how many of a row's K ids were drawn
  at::Tensor scale;     // [R] float64: W
  at::Tensor offset;    // [R] float64
};

// kappa undefined: with replacement, w = (times drawn) / N; else w = q / (1 - exp(-exp(log q -
// kappa))). The signal's shapes have been checked; a number that cannot be makes a row of NaN.
WeightedIds weigh(const TeacherSampled& signal, int64_t common);

}  // namespace retort::losses::detail
