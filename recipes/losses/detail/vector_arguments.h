// Checks of the small vectors that the preference and policy losses take, and reading them as
// numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace retort::losses::detail {

// kInvalidArgument naming `name` unless `tensor` is [size] of `dtype`, on any device.
void require_vector(const at::Tensor& tensor, const char* name, int64_t size,
                    at::ScalarType dtype = at::kFloat);

// The elements of a float32 vector that has been checked, copied to the host if they are elsewhere;
// keeps them alive. An undefined tensor reads as zeros.
class FloatVector {
 public:
  FloatVector() = default;
  explicit FloatVector(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    values_ = tensor.detach().to(at::kCPU).contiguous();
    data_ = values_.data_ptr<float>();
  }
  double operator[](int64_t i) const { return data_ ? data_[i] : 0.0; }

 private:
  at::Tensor values_;
  const float* data_ = nullptr;
};

}  // namespace retort::losses::detail
