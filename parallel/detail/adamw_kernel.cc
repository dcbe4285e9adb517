#include "parallel/detail/adamw_kernel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/sizes.h"
#include "kernels/device_kernels.h"
#include "kernels/launch_shapes.h"
#include "parallel/staged_copy.h"

namespace retort::parallel::detail {
namespace {

// A thread updates so many elements at once.
constexpr int64_t kThreadElements = 8;

// As AdamwChunk of kernels/adamw.cuh.
struct Chunk {
  int64_t tensor;
  int64_t begin;
};

const kernels::LaunchShape& shape_on(const at::Device& device) {
  return kernels::launch_shape(kernels::ShapedKernel::kAdamw, device);
}

// Tensors that are all small get blocks without idle threads.
int64_t threads_for(int64_t elements, int64_t most) {
  constexpr int64_t kWarp = 32;
  const int64_t wanted = kernels::ceil_div(elements, kThreadElements);
  return std::clamp(kernels::ceil_div(wanted, kWarp) * kWarp, kWarp, most);
}

}  // namespace

bool AdamwKernel::takes(const at::Tensor& parameter) {
  const at::ScalarType dtype = parameter.scalar_type();
  return kernels::device_kernels(parameter.device()) != nullptr &&
         (dtype == at::kFloat || dtype == at::kBFloat16);
}

void AdamwKernel::upload(const std::vector<AdamwUpdate>& updates, const at::Device& device) {
  static_assert(sizeof(AdamwUpdate) == 56 && sizeof(Chunk) == 16,
                "as kernels/adamw.cuh reads them");
  const int64_t chunk_size = shape_on(device).share;
  std::vector<Chunk> chunks;
  most_elements_ = 0;
  for (size_t i = 0; i < updates.size(); ++i) {
    most_elements_ = std::max(most_elements_, std::min(updates[i].count, chunk_size));
    for (int64_t begin = 0; begin < updates[i].count; begin += chunk_size)
      chunks.push_back({.tensor = to_int64(i), .begin = begin});
  }

  const size_t update_bytes = updates.size() * sizeof(AdamwUpdate);
  const size_t chunk_bytes = chunks.size() * sizeof(Chunk);
  at::Tensor host = at::empty({to_int64(update_bytes + chunk_bytes)}, at::kByte);
  auto* bytes = host.mutable_data_ptr<uint8_t>();
  std::memcpy(bytes, updates.data(), update_bytes);
  std::memcpy(bytes + update_bytes, chunks.data(), chunk_bytes);
  table_ = staged_to(device, host);
  num_chunks_ = std::ssize(chunks);
  updates_ = updates;
}

void AdamwKernel::run(const std::vector<AdamwUpdate>& updates, const AdamwStep& step,
                      const at::Device& device) {
  if (updates.empty()) return;

  // The table says where everything lies. It is compared rather than trusted, because a parameter
  // may have been given other memory since the last step.
  if (updates != updates_) upload(updates, device);

  // Powers of float32's betas would be wrong by 1e-5 after a few hundred steps.
  const auto number = static_cast<double>(step.number);
  const double bias1 = 1 - std::pow(step.beta1, number);
  const double bias2_sqrt = std::sqrt(1 - std::pow(step.beta2, number));

  // The kernel reads the scale on the device.
  at::Tensor scale;
  if (step.grad_scale != 1)
    scale = at::full({}, step.grad_scale, at::TensorOptions(at::kFloat).device(device));

  const auto* tensors = static_cast<const uint8_t*>(table_.const_data_ptr());
  const uint8_t* chunks = tensors + updates_.size() * sizeof(AdamwUpdate);
  const kernels::LaunchShape& shape = shape_on(device);
  kernels::launch_kernel(*kernels::device_kernels(device), device,
                         {.name = "retort_adamw",
                          .grid_x = num_chunks_,
                          .block = threads_for(most_elements_, shape.threads)},
                         tensors, chunks, shape.share, kernels::read_address(scale),
                         static_cast<float>(step.learning_rate), static_cast<float>(step.beta1),
                         static_cast<float>(step.beta2), static_cast<float>(step.eps),
                         static_cast<float>(bias1), static_cast<float>(bias2_sqrt));
}

}  // namespace retort::parallel::detail
