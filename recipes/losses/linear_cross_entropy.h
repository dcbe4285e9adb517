// Token cross-entropy of a linear head, chunk by chunk: the [R, V] logits never exist whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "parallel/vocab_shard.h"
#include "recipes/losses/cross_entropy_type.h"

namespace retort::losses {

// The numbers of the rows that the host reads beside their loss.
struct CrossEntropySums {
  double entropy_sum = 0;   // of the student's distribution, nats
  int64_t num_correct = 0;  // argmax == target

  // Reads UnreadCrossEntropy::numbers, which must be in host memory.
  static CrossEntropySums of(const double* numbers);
};

struct CrossEntropyResult : CrossEntropySums {
  // scalar float32 with autograd: sum over rows of -log p(target), or what `type` makes of it
  at::Tensor loss_sum;
  int64_t count = 0;  // R
};

// The same numbers before anybody has waited for a device.
struct UnreadCrossEntropy {
  at::Tensor loss_sum;  // as above
  int64_t count = 0;
  at::Tensor numbers;  // [2] float64, where hidden is: what CrossEntropySums::of() reads
};

// The cross-entropy of R rows, with its gradient and metrics.
//
// Arguments: hidden [R, H] of a float dtype, which may require grad, weight [V, H], bias [V] or
//   undefined, targets [R] int64. R = 0 gives a zero that still reaches hidden and weight in
//   backward.
// Gradient: each chunk's is formed in the forward pass, dH [R, H] in hidden's dtype and dW [V, H]
//   as a sum in fp32; both are scaled by the incoming scalar in backward. Without grad mode none is
//   formed.
// Type: CrossEntropyType; the numbers beside the loss do not depend on it.
// Softcap: c > 0 makes the logits c tanh(hidden weight^T / c) + bias (models::Head::softcap); then
//   another chunk of logits is held in memory.
// Split vocabulary: weight and bias are this rank's rows [begin, begin + rows), targets are ids of
//   the whole vocabulary, hidden and targets are the same on every rank. So is the result. dH is
//   what these rows contribute (the sum over the ranks is the whole), dW theirs alone.
// Collectives: none for a whole vocabulary; else a vote on the arguments, then two all-reduces a
//   chunk, and none in backward. Every rank must call.
// Memory: chunk*V*4*2 + R*H + V*H*4 bytes; on a device, or of a split vocabulary, about 5*chunk*V*4
//   for the chunk. A weight that is not float32 is copied (V*H*4 more), unless weight and hidden
//   are bfloat16 on a device.
// Precision: products in float32; of bfloat16 on a device in bfloat16 with float32 sums, where the
//   gradient by the logits is rounded to bfloat16 before its two products. Softmax in float32.
// Errors: kInvalidArgument for shapes, dtypes, devices, chunk_tokens, a target outside [0, V) (with
//   its row). An error of one rank is thrown on all of them.
// Devices: a whole vocabulary on the CPU has row kernels, everything else ATen operators. It is
//   computed where hidden is; weight and bias must be there too. targets may be there or on the
//   host, which is better: ids on a device are waited for to be checked, host ids are checked and
//   copied. The call waits for the device once, for the sums; unread_cross_entropy() does not, so
//   that the numbers of many calls can be read together.
CrossEntropyResult linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& targets,
                                        int64_t chunk_tokens = 0,
                                        const parallel::VocabShard& vocab = {}, double softcap = 0,
                                        CrossEntropyType type = CrossEntropyType::kNll);
UnreadCrossEntropy unread_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& targets,
                                        int64_t chunk_tokens = 0,
                                        const parallel::VocabShard& vocab = {}, double softcap = 0,
                                        CrossEntropyType type = CrossEntropyType::kNll);

}  // namespace retort::losses
