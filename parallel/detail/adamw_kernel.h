// AdamW's update of many tensors by our own kernel (kernels/adamw.cuh), in one pass over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace retort::parallel::detail {

// One tensor of an update, as AdamwTensor of kernels/adamw.cuh has it: addresses on one device.
// They are no tensors, because a view of each takes the host longer than the device needs for a
// step, and it comes at a time when the device has nothing else to do.
struct AdamwUpdate {
  float* values = nullptr;  // a master, or a parameter that needs none
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const float* grad = nullptr;  // only read
  void* weight = nullptr;       // bf16: takes over the values, rounded; null: none does
  int64_t count = 0;            // elements of each
  float weight_decay = 0;
  int32_t unused = 0;
  bool operator==(const AdamwUpdate&) const = default;
};

// What is the same for all tensors of a step.
struct AdamwStep {
  int64_t number = 1;  // of the step, counted from 1
  double learning_rate = 0;
  double beta1 = 0, beta2 = 0, eps = 0;
  double grad_scale = 1;  // each gradient is multiplied with it as it is read
};

// Memory: on the device a table of 56 bytes a tensor and 16 for each chunk of 4,096 elements.
// Launches: one a step, of all tensors, and one that fills in a scale other than 1.
// Host: queues only. The table is copied to the device in the first step, and again when a tensor
//   has another address, size or weight decay, from pinned memory of its size.
// Threads: that of the optimizer.
class AdamwKernel {
 public:
  // Tells whether the device of the parameter has kernels, and the kernel can write its dtype: fp32
  // and bf16, not fp16.
  static bool takes(const at::Tensor& parameter);

  void run(const std::vector<AdamwUpdate>& updates, const AdamwStep& step,
           const at::Device& device);

 private:
  void upload(const std::vector<AdamwUpdate>& updates, const at::Device& device);

  std::vector<AdamwUpdate> updates_;  // those of the table
  at::Tensor table_;                  // bytes: the updates, then the chunks
  int64_t num_chunks_ = 0;
  int64_t most_elements_ = 0;  // of a chunk
};

}  // namespace retort::parallel::detail
