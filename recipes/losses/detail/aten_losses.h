// The ATen path: each loss in LibTorch's operators, over the columns of the logits that this rank
// holds. It runs on any device, where the row kernels (row_kernels.h) run on the CPU alone.
//
// Use: the public functions take it for a vocabulary that is split over the ranks, wherever it is,
//   and for a whole vocabulary on a device. A whole vocabulary on the CPU has the row kernels.
//   Arguments, results and errors are those of the public functions, unread where they can be.
//   Tests call these for a whole vocabulary on the CPU too, to compare the two paths.
// Arithmetic: a chunk of logits is [n, own columns] float32. What a row needs of the whole
//   vocabulary, its maximum and its sums, is put together over the ranks by VocabGroup, in float64
//   for sums. With a whole vocabulary the own columns are all of them, and nothing is reduced.
// Files: aten_softmax has the student's softmax, aten_divergence the divergences of two softmaxes,
//   aten_teacher one class for each kind of payload (aten_dense, aten_top_k), and the three losses
//   below have a file each.
// Collectives: of a split vocabulary as said at each function; of a whole one none.
#pragma once

#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/linear_log_probs.h"

namespace retort::losses::detail {

// Collectives: one vote, then two all-reduces a chunk.
UnreadCrossEntropy aten_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                      const at::Tensor& bias, const at::Tensor& targets,
                                      int64_t chunk_tokens, const parallel::VocabShard& vocab,
                                      double softcap = 0,
                                      CrossEntropyType type = CrossEntropyType::kNll);

// kInvalidArgument: temperature, chunk_tokens.
void check_log_probs_options(const LogProbsOptions& options);
// Collectives: one vote, then two all-reduces a chunk; none in backward.
LogProbs aten_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& targets, const LogProbsOptions& options,
                        const parallel::VocabShard& vocab, double softcap = 0);

// Collectives: one vote, for TeacherHidden one all-gather, then two or three all-reduces a chunk
// (docs/losses.md).
UnreadDistill aten_distill(const at::Tensor& hidden, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& targets,
                           const TeacherSignal& signal, const DivergenceOptions& options,
                           const parallel::VocabShard& vocab, double softcap = 0);

// Reads what the host is to know of a loss, and waits for its device.
CrossEntropyResult read(UnreadCrossEntropy loss);
DistillResult read(UnreadDistill loss);

}  // namespace retort::losses::detail
