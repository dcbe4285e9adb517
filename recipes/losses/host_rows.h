// Numbers of rows that a loss of the host is made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace retort::losses {

// Vectors of one dtype, each of a length of its own, in host memory: themselves where they are
// there, else copied from their device all together, so that it is waited for once. Gradients pass
// through. An undefined one stays so.
std::vector<at::Tensor> in_host_memory(std::vector<at::Tensor> vectors);

}  // namespace retort::losses
