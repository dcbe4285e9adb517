// Ids drawn from a teacher's distribution: the payload `sampled`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/vocab_shard.h"
#include "roles/payload/payload.h"

namespace retort::roles {

// kCorrupt for a row without a distribution: numbers of it, [n], that are not finite where a logit
// is not.
void check_drawable(const at::Tensor& numbers);

// The seed of a request's draws, from PayloadSpec::seed and the request's id, so that every
// replica, every part and every repetition of a request draws the same.
uint64_t draw_seed(uint64_t seed, uint64_t request_id);

// Draws from each row of log_probs [n, V] float32 (host memory, normalised over the whole
// vocabulary) and writes rows [first_row, first_row + n) of ids, logps and, without replacement,
// kappa of `to`. The noise is a function of (spec.seed, row of the payload, id or number of the
// draw) alone. Of a split vocabulary log_probs are those of this rank's ids [n, rows of this rank],
// and every rank gets what one rank would draw, but for the rounding of log_probs.
//   with replacement     N ids, each by the inverse of the cumulative distribution, in the order of
//                        the draws
//   without replacement  the N ids with the largest log q + Gumbel noise, largest first, and as
//                        kappa the (N + 1)-th largest such sum; -inf where all ids are drawn
// Collectives: of a split vocabulary on vocab.group one all-gather of [n, N + 1, 3] doubles, with
// replacement one of [n] and one of [n, N, 2].
// Source: Gumbel top-N, arXiv 1903.06059.
void draw_rows(const at::Tensor& log_probs, const PayloadSpec& spec, int64_t first_row, Payload& to,
               const parallel::VocabShard& vocab = {});

}  // namespace retort::roles
