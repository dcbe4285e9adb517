// The mean logit of a row, as a metric.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/decoder.h"

namespace retort::recipes {

// The mean over the vocabulary of the logits of each of `rows` [R, H]: [R] float32 in host memory,
// without autograd. Collectives: one all-reduce on tp where the vocabulary is split.
at::Tensor mean_logits(const models::Head& head, const at::Tensor& rows);

}  // namespace retort::recipes
