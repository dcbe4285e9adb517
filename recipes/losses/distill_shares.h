// The loss of rows that several teachers answer, each its own rows with its own weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "parallel/vocab_shard.h"
#include "recipes/losses/divergence.h"
#include "recipes/losses/teacher_signal.h"

namespace retort::losses {

// The size of a chunk of logits and what stands beside it, where one pass serves several shares.
inline constexpr int64_t kSharesChunkBytes = 32 << 20;

// The answer of one teacher for R rows, or some of them.
struct TeacherShare {
  TeacherSignal signal;      // its rows, in their order
  at::Tensor rows;           // [r] int64 on the host, ascending: which of the R; undefined: all
  double weight = 1.0;       // of its rows' loss
  int64_t common_vocab = 0;  // DivergenceOptions::common_vocab with this teacher
};

// Before anybody has waited for a device, as UnreadDistill.
struct UnreadShares {
  // scalar float32 with autograd: sum over the shares of weight * (its rows' loss)
  at::Tensor loss_sum;
  at::Tensor numbers;  // [shares, 8] float64: UnreadDistill::numbers of each, without its weight
};

// The weighted sum of linear_distill() over the shares, and its gradient. Where the weights of a
// row sum to 1, so do those of its cross-entropy.
//
// Arguments, softcap, split vocabulary, collectives, errors and devices: as linear_distill(), with
//   each share for itself and in order; a row that is refused is counted in its share. At least
//   one.
// Work: a whole vocabulary on the CPU has the student's logits and both products of the gradient
//   once for all shares; everything else a pass for each share.
// Memory: on the CPU as linear_distill() with 2*chunk*V*4 bytes more (a share's own logits, and
//   the gradients' sum), together kSharesChunkBytes; where one share has all rows, no more.
UnreadShares unread_distill_shares(const at::Tensor& hidden, const at::Tensor& weight,
                                   const at::Tensor& bias, const at::Tensor& targets,
                                   const std::vector<TeacherShare>& shares,
                                   const DivergenceOptions& options,
                                   const parallel::VocabShard& vocab = {}, double softcap = 0);

}  // namespace retort::losses
