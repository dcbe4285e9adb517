// log of the sum of the squared probabilities that a linear head gives, chunk by chunk: the [R, V]
// logits never exist whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/vocab_shard.h"

namespace retort::losses {

// log sum over v of p(v)^2 of R rows: [R] float32 where hidden is, without autograd. It is the
// logarithm of how likely a token that the row draws is to be drawn again.
//
// Arguments, softcap, split vocabulary, devices: as linear_log_probs (losses/linear_log_probs.h);
//   `chunk_tokens`: rows formed at once, 0: chosen from sizes alone.
// Memory: chunk*V*4 bytes, and V*H*4 for a float32 copy of a weight of another dtype. Collectives:
//   two all-reduces a chunk where the vocabulary is split.
// Errors: kInvalidArgument for shapes, dtypes and chunk_tokens.
at::Tensor linear_log_sum_squares(const at::Tensor& hidden, const at::Tensor& weight,
                                  const parallel::VocabShard& vocab = {}, double softcap = 0,
                                  int64_t chunk_tokens = 0);

}  // namespace retort::losses
