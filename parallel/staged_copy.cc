#include "parallel/staged_copy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdint>

namespace retort::parallel {
namespace {

// Part [begin, ..) of a block of bytes, in the shape and the dtype of `like`.
at::Tensor part_of(const at::Tensor& block, int64_t begin, const at::Tensor& like) {
  const auto bytes = static_cast<int64_t>(like.nbytes());
  return block.narrow(0, begin, bytes).view(like.scalar_type()).view(like.sizes());
}

}  // namespace

std::vector<at::Tensor> staged_to(const at::Device& device,
                                  const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  const auto is_staged = [&](const at::Tensor& t) {
    return t.defined() && t.is_cpu() && !device.is_cpu();
  };
  // Each begins where kernels may read 16 bytes at once.
  constexpr int64_t kAlignment = 16;
  std::vector<int64_t> begins;
  int64_t bytes = 0;
  for (const at::Tensor& t : tensors) {
    begins.push_back(bytes);
    if (is_staged(t))
      bytes += (static_cast<int64_t>(t.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
  }

  at::Tensor there;
  if (bytes > 0) {
    const auto options = at::TensorOptions().dtype(at::kByte);
    const at::Tensor pinned = at::empty({bytes}, options.pinned_memory(true));
    for (size_t i = 0; i < tensors.size(); ++i)
      if (is_staged(tensors[i])) part_of(pinned, begins[i], tensors[i]).copy_(tensors[i]);
    there = at::empty({bytes}, options.device(device)).copy_(pinned, /*non_blocking=*/true);
  }

  std::vector<at::Tensor> moved;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    if (!is_staged(t))
      moved.push_back(t.defined() ? t.detach().to(device) : t);
    else
      moved.push_back(t.numel() > 0 ? part_of(there, begins[i], t)
                                    : at::empty(t.sizes(), t.options().device(device)));
  }
  return moved;
}

at::Tensor staged_to(const at::Device& device, const at::Tensor& tensor) {
  return staged_to(device, std::vector<at::Tensor>{tensor}).front();
}

}  // namespace retort::parallel
