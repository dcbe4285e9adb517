// Sums of squares of gradients in fp64, for their norm and to find those that are not finite.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace retort::parallel::detail {

// The sum of the squares of each tensor's elements, 0 for a tensor without elements. Tensors: fp32,
// one dimension, contiguous, all on one device. Squares of finite fp32 values never overflow fp64,
// so a sum is finite exactly if all elements are. On the CPU the bits are the same for every number
// of threads; on a device it is operator_sums_of_squares().
std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors);

// The same with ATen's operators, which know every device: one list of kernels that read fp32 and
// add in fp64, and one copy to the host, for which the caller waits.
std::vector<double> operator_sums_of_squares(const std::vector<at::Tensor>& tensors);

}  // namespace retort::parallel::detail
