// Ids drawn from a teacher's distribution: the payload `sampled`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "roles/payload/payload.h"

namespace retort::roles {

// What the draws of a request are made with: PayloadSpec::seed and the request's id, so that every
// replica, every part and every repetition of a request draws the same.
uint64_t draw_seed(uint64_t seed, uint64_t request_id);

// Draws from each row of log_probs [n, V] float32 (host memory, normalised) and writes rows
// [first_row, first_row + n) of ids, logps and, without replacement, kappa of `to`. The noise is a
// function of (spec.seed, row of the payload, id or number of the draw) alone.
//   with replacement     N ids, each by the inverse of the cumulative distribution, in the order of
//                        the draws
//   without replacement  the N ids with the largest log q + Gumbel noise, largest first, and as
//                        kappa the (N + 1)-th largest such sum; -inf where all ids are drawn
// Source: Gumbel top-N, arXiv 1903.06059.
void draw_rows(const at::Tensor& log_probs, const PayloadSpec& spec, int64_t first_row,
               Payload& to);

}  // namespace retort::roles
