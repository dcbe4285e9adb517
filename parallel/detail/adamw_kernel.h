// AdamW's update of many tensors by our own kernel (kernels/adamw.cuh), in one pass over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace retort::parallel::detail {

// One tensor of an update. All have the same number of elements, are contiguous and lie on one
// device.
struct AdamwUpdate {
  at::Tensor values;               // fp32: a master, or a parameter that needs none
  at::Tensor exp_avg, exp_avg_sq;  // fp32
  at::Tensor grad;                 // fp32, only read
  at::Tensor weight;               // bf16: takes over the values, rounded; undefined: none does
  double weight_decay = 0;
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
//   has another address, size or weight decay; that copy may wait for what was queued before.
// Threads: that of the optimizer.
class AdamwKernel {
 public:
  // Tells whether the device of the parameter has kernels, and the kernel can write its dtype: fp32
  // and bf16, not fp16.
  static bool takes(const at::Tensor& parameter);

  void run(const std::vector<AdamwUpdate>& updates, const AdamwStep& step);

 private:
  // As AdamwTensor of kernels/adamw.cuh.
  struct Row {
    void* values;
    void* exp_avg;
    void* exp_avg_sq;
    const void* grad;
    void* weight;
    int64_t count;
    float weight_decay;
    int32_t unused = 0;
    bool operator==(const Row&) const = default;
  };

  static Row row_of(const AdamwUpdate& update);
  void upload(const std::vector<Row>& rows, const at::Device& device);

  std::vector<Row> rows_;  // those of the table
  at::Tensor table_;       // bytes: the rows, then the chunks
  int64_t num_chunks_ = 0;
  int64_t most_elements_ = 0;  // of a chunk
};

}  // namespace retort::parallel::detail
