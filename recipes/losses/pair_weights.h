// Weights that options of DPO give: to tokens (LD-DPO), and to pairs (WPO). In host memory, without
// autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace retort::losses {

// LD-DPO (Liu et al. 2024, arXiv 2409.06411): how much each token of P pairs counts in the sum of
// its completion. The first tokens of both, as many as the shorter has, count 1, the others
// `ld_alpha`. As TRL 1.16's DPOTrainer.
//
// `sequence_of_row` [R] int64: pair i has the chosen completion 2 i and the rejected one 2 i + 1,
// the tokens of each in their order. Returns [R] float32.
at::Tensor shared_length_weights(const at::Tensor& sequence_of_row, int64_t pairs, double ld_alpha);

// WPO (Zhou et al. 2024, arXiv 2406.11827), its weights as TRL 1.16's DPOTrainer aligns them: of a
// pair the product over both completions of
//   exp(mean over the completion's tokens of (log p(token) - log sum over v of p(v)^2)),
// so that a completion weighs 1 whose tokens are as likely as what the policy would draw.
//
// `log_probs`, `log_sum_squares` (losses/log_sum_squares.h) [R] float32, `sequence_of_row` as
// above. Returns [P] float32; a completion without tokens counts as 1.
at::Tensor pair_weights(const at::Tensor& log_probs, const at::Tensor& log_sum_squares,
                        const at::Tensor& sequence_of_row, int64_t pairs);

}  // namespace retort::losses
