// Small helpers for laying out batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace retort::data::detail {

at::Tensor to_tensor(const std::vector<int64_t>& values);  // [values.size()] int64

}  // namespace retort::data::detail
