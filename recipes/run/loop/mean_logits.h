// The mean logit of a row, as a metric.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/decoder/decoder.h"

namespace retort::recipes {

// Keeps the mean of the head's rows, so that the head is read once for as many micro-batches as see
// the same weights. Threads: compute.
class MeanLogits {
 public:
  // The mean over the vocabulary of the logits of each of `rows` [R, H]: [R] float32 where
  // they are, without autograd. Collectives: after forget() one all-reduce on tp where the
  // vocabulary is split, else none; of capped logits, which are formed for it, one in each call.
  at::Tensor of(const models::Head& head, const at::Tensor& rows);
  // The weights have changed, or will; the same calls on all ranks of tp.
  void forget() { mean_row_ = at::Tensor(); }

 private:
  at::Tensor mean_row_;  // [H], undefined: not known
};

}  // namespace retort::recipes
