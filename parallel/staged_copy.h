// Index numbers, targets and other small tensors of the host on their way to a device: one copy of
// pinned memory, for which nobody waits. A copy of pageable memory makes the host wait until the
// device has done all that was queued before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace retort::parallel {

// The tensors on `device`, in their order, with their values, shapes and dtypes.
//   Those in host memory are packed into one block of pinned memory, which one copy on the current
//   stream takes to one block on the device; the results are parts of that. Tensors that are there
//   already, undefined ones, and all if the device is the CPU, are returned as they are.
// Values: those at the call; what was given may change behind it. Results are no part of autograd.
// Memory: the block on the device lives as long as one of the results. The pinned block may be let
//   go at once: LibTorch's allocator of pinned memory records the stream, and gives the block to
//   nobody before the copy is done.
// Threads: any whose current stream is that of the tensors' use.
std::vector<at::Tensor> staged_to(const at::Device& device, const std::vector<at::Tensor>& tensors);
at::Tensor staged_to(const at::Device& device, const at::Tensor& tensor);

}  // namespace retort::parallel
