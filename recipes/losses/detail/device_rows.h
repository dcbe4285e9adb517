// The losses of rows of logits by the kernels of this project (kernels/cross_entropy.cuh,
// divergence.cuh, log_probs.cuh), on devices that have them: each reads a row once or twice, where
// operators of ATen pass over it a dozen times, and needs no memory beside it.
//
// Logits are [R, V] float32, contiguous. A gradient takes their place: float32 in place, or
// bfloat16 over the front of each row's own memory, which over_front() shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "recipes/losses/detail/row_loss.h"
#include "recipes/losses/detail/vocab_group.h"

namespace retort::losses::detail {

// True if these logits are a kernel's: contiguous float32 with columns, on a device that has them.
bool has_row_kernels(const at::Tensor& logits);
// Rows of logits that are formed at once where a loss needs no other buffer of that size: with
// kernels more than aten_chunk_rows(), so that dW is read and written less often.
int64_t logit_chunk_rows(int64_t asked, const VocabGroup& vocab, const at::Device& device);

enum class GradientDtype : uint8_t { kFloat32, kBfloat16 };
// [R, V] bfloat16, whose rows begin where those of the logits do.
at::Tensor over_front(const at::Tensor& logits);

// Cross-entropy of rows by targets [R] int64: [3, R] float64 log-probability of the target,
// entropy, and 1 where the target is the first of the largest logits. The logits become softmax -
// 1[target].
at::Tensor cross_entropy_rows(at::Tensor logits, const at::Tensor& targets, GradientDtype gradient);

// The same for CrossEntropyType::kDft: [3, R] float64 p log p of the target, entropy, and 1 as
// above; the logits become p (softmax - 1[target]), with p the target's.
at::Tensor dft_rows(at::Tensor logits, const at::Tensor& targets, GradientDtype gradient);

// A divergence between the softmaxes of the first `common` columns of both, and the student's
// cross-entropy beside: [7, R] float64 the divergence, the log-probability of the target, entropy,
// 1 where the target is the first of the largest logits, the teacher's mass on its columns behind
// `common`, its maximum and its sum of exponentials. With loss.gradient the student's logits become
// loss.ce_weight (softmax - 1[target]) + loss.kd_weight d(divergence) / d(logit / T).
at::Tensor divergence_rows(at::Tensor student, const at::Tensor& teacher, int64_t common,
                           const at::Tensor& targets, const RowLoss& loss,
                           double teacher_inv_temperature, GradientDtype gradient);

// The numbers of rows at a temperature: log-probability of the target and, where it is defined, the
// entropy, with the maximum, all [R] float32, and the sum of exponentials [R] float64, each into
// its tensor.
struct LogProbOutputs {
  at::Tensor log_probs, entropy, max, sum;
};
void log_prob_rows(const at::Tensor& logits, const at::Tensor& targets, double inv_temperature,
                   LogProbOutputs outputs);
// The logits become (g (1[target] - p) - h p (log p + entropy)) / T, from what log_prob_rows() gave
// and the incoming gradients g and (undefined: none) h, [R] float32.
void log_prob_rows_gradient(at::Tensor logits, const at::Tensor& targets, double inv_temperature,
                            const LogProbOutputs& saved, const at::Tensor& incoming,
                            const at::Tensor& of_entropy, GradientDtype gradient);

}  // namespace retort::losses::detail
