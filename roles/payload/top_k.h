// The largest values of each row, in an order that does not depend on how a vocabulary is split.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace retort::roles {

// values [R, V] float32 with rows of consecutive elements: the k largest [R, k], descending, and
// their indices [R, k] int64; of equal values those with the lowest index, in its order. NaN is
// larger than any number. Both results lie where the values do. On a device the host waits for it
// once; memory there: two int64 for each value.
std::pair<at::Tensor, at::Tensor> top_k(const at::Tensor& values, int64_t k);

}  // namespace retort::roles
