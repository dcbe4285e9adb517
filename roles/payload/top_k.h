// The largest values of each row, in an order that does not depend on how a vocabulary is split.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace retort::roles {

// values [R, V] float32 with rows of consecutive elements: the k largest [R, k], descending, and
// their indices [R, k] int64; of equal values those with the lowest index, in its order. NaN is
// larger than any number. Both results lie where the values do. On a device without a kernel for
// it (has_top_k_kernel) the host waits for it once, and memory there is two int64 for each value;
// with one there is neither.
std::pair<at::Tensor, at::Tensor> top_k(const at::Tensor& values, int64_t k);

// True if the values are on a device with kernels (kernels/top_k.cuh), which take 1 <= k <= 1,024.
// All else goes the way of ATen's operators.
bool has_top_k_kernel(const at::Tensor& values, int64_t k);

struct TopKLogProbs {
  at::Tensor ids;        // [R, k] int64, as top_k() chooses
  at::Tensor log_probs;  // [R, k] float32
  at::Tensor log_total;  // [R] float32, log sum of exp(logit)
  at::Tensor log_tail;   // [R] float32, of the mass that the k leave; -inf where k = V
};
// Of `logits` that has_top_k_kernel(), by that kernel alone: two readings, and nothing of their
// size beside them. A row with +inf or NaN has no numbers but NaN.
TopKLogProbs top_k_log_probs(const at::Tensor& logits, int64_t k);

}  // namespace retort::roles
