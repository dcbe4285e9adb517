// Sums of squares of gradients in fp64, for their norm and to find those that are not finite.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace retort::parallel::detail {

// One for each tensor: fp32, one dimension, contiguous, all on one device; 0 for one without
// elements. Squares of finite fp32 values never overflow fp64, so a sum is finite exactly if all
// elements are. On the CPU the same bits for every number of threads; elsewhere as below.
std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors);

// The same with ATen's operators, which know every device: one list of kernels that read fp32 and
// add in fp64, one copy to the host, for which the caller waits.
std::vector<double> operator_sums_of_squares(const std::vector<at::Tensor>& tensors);

}  // namespace retort::parallel::detail
