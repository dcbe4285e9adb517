// The losses in ATen operators over the columns that this rank holds: of a split vocabulary, and of
// a whole one on a device without row kernels. The public functions choose; arguments, results and
// errors are theirs. Tests call these for a whole vocabulary too.
#pragma once

#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/linear_log_probs.h"

namespace retort::losses::detail {

// One vote, then two all-reduces a chunk (of a split vocabulary; none otherwise).
CrossEntropyResult sharded_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                         const at::Tensor& bias, const at::Tensor& targets,
                                         int64_t chunk_tokens, const parallel::VocabShard& vocab);

// kInvalidArgument: temperature, chunk_tokens.
void check_log_probs_options(const LogProbsOptions& options);
// One vote, then two all-reduces a chunk; none in backward.
LogProbs sharded_log_probs(const at::Tensor& hidden, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& targets,
                           const LogProbsOptions& options, const parallel::VocabShard& vocab);

// One vote (and one all-gather for hidden), then two or three all-reduces a chunk: docs/losses.md.
DistillResult sharded_distill(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& bias, const at::Tensor& targets,
                              const TeacherSignal& signal, const DivergenceOptions& options,
                              const parallel::VocabShard& vocab);

}  // namespace retort::losses::detail
