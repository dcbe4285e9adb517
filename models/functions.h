// Differentiable building blocks of a decoder layer. Each has a fused fp32 CPU path and an ATen path for other dtypes and
// devices. Private to models/. Shape legend: N rows, H hidden, V vocabulary, I intermediate.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

namespace retort::models {

// Linear layers that read the same input (q, k, v; gate, up): one pass over dx in backward, and under tensor parallelism the
// one place where their input's gradient is summed over the ranks. `biases` is empty or has one for each weight.
std::vector<at::Tensor> column_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                      const std::vector<at::Tensor>& biases);
// A linear layer that closes a block (o_proj, down_proj). `bias` may be undefined.
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// RMSNorm over the last dimension (statistics in fp32; the weight multiplies in the dtype of x).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// {a + b, rms_norm(a + b)}.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& a, const at::Tensor& b, const at::Tensor& weight, double eps);

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// y = body(x, parameters) without keeping activations: backward runs `body` again with gradients on. `body` must be pure.
using LayerBody = std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;
at::Tensor checkpointed(const LayerBody& body, const at::Tensor& x, const std::vector<at::Tensor>& parameters);

// Whether the fused paths apply: fp32 on the CPU, contiguous.
bool fused_path(const at::Tensor& x);

}  // namespace retort::models
