// log p(target) of each row of a linear head, differentiable, chunk by chunk: the [R, V] logits
// never exist whole. What losses over whole sequences (preferences, policy gradients) are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/vocab_shard.h"

namespace retort::losses {

struct LogProbsOptions {
  double temperature = 1.0;  // divides the logits, of the entropy as well; positive and finite
  bool entropy = false;      // fill LogProbs::entropy
  // LogProbs::entropy with autograd, as log_probs; of no row is anything kept then
  bool entropy_gradient = false;
  int64_t chunk_tokens = 0;  // rows formed at once; 0: chosen from sizes alone
  // At most, of d log p / d logits kept for backward by the first rows of a whole vocabulary on the
  // CPU; 0: none
  int64_t kept_bytes = 64 << 20;
};

struct LogProbs {
  // [R] float32, with autograd if grad mode is on and hidden, weight or bias requires grad
  at::Tensor log_probs;
  // [R] float32 nats; with a gradient only by entropy_gradient; undefined unless asked for
  at::Tensor entropy;
};

// log p(target) of R rows, as a function of hidden, weight and bias.
//
// Arguments: hidden [R, H] of a float dtype, which may require grad, weight [V, H], bias [V] or
//   undefined, targets [R] int64. R = 0 reaches hidden, weight and bias in backward, with zeros.
// Gradient: backward has two products to compute for rows whose gradient by their logits was kept
//   (it is the same but for a factor, whatever comes in), and forms the logits of the others a
//   second time, so the inputs must not change in place in between (LibTorch checks it).
//   Differentiable once: create_graph is refused.
// Softcap: as linear_cross_entropy; of no row is anything kept then.
// Split vocabulary, collectives: as linear_cross_entropy, but 12 bytes a row more are kept, so that
//   backward needs no collective.
// Memory: beyond the inputs chunk*V*4 + R*8 bytes in forward (also under no-grad); chunk*V*4 +
//   R*H*sizeof(hidden) + V*H*4 in backward; in both, and in between, min(R*V*4, kept_bytes); in
//   each V*H*4 more for a float32 copy of a weight of another dtype, unless it is bfloat16 on a
//   device, with hidden states of bfloat16.
// Errors: kInvalidArgument for shapes, dtypes, devices, a target outside [0, V) (with its row),
//   temperature, chunk_tokens, kept_bytes, entropy_gradient without entropy.
// Devices: as linear_cross_entropy. The results are where hidden is, and the call does not wait for
//   them.
LogProbs linear_log_probs(const at::Tensor& hidden, const at::Tensor& weight,
                          const at::Tensor& bias, const at::Tensor& targets,
                          const LogProbsOptions& options = {},
                          const parallel::VocabShard& vocab = {}, double softcap = 0);

}  // namespace retort::losses
