// What the losses aot and aot_unpaired compare a completion with: not the other one of its pair,
// but the number that has the same place in order among all pairs of the global batch.
#pragma once

#include <ATen/core/Tensor.h>

namespace retort::losses {

// Of P pairs; with s = log pi - log pi_ref of a completion, and m = chosen - rejected of log pi:
//     row 0   the reference's m that has the place of this pair's m    (aot)
//     row 1   the rejected s that has the place of this pair's chosen s    (aot_unpaired)
//     row 2   the chosen s that has the place of this pair's rejected s    (aot_unpaired)
// [3, P] float64 in host memory, without gradient. Each argument: [P] float32, the sums of
// log-probabilities of *all* pairs of the global batch in any order, on any device. Equal numbers
// stand in the order that they are given in; NaN stands last.
// Errors: kInvalidArgument for shapes and dtypes. Collectives: none. Threads: any.
at::Tensor counterparts(const at::Tensor& policy_chosen, const at::Tensor& policy_rejected,
                        const at::Tensor& reference_chosen, const at::Tensor& reference_rejected);

}  // namespace retort::losses
