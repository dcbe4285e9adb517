// Differentiable building blocks of a decoder layer. Each has a fused fp32 CPU path and an ATen
// path for other dtypes and devices. Private to models/. Shape legend: N rows, H hidden, V
// vocabulary, I intermediate.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "models/tensor_parallel.h"

namespace retort::models {

// Linear layers that read the same input (q, k, v; gate, up): one pass over dx in backward.
// `biases` is empty or has one for each weight. With tensor parallelism the weights are this rank's
// rows and x is what enter_block takes: its mapping is part of this one, so that a gathered input
// is not kept for backward but gathered again (one all-gather more on tp).
std::vector<at::Tensor> column_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                      const std::vector<at::Tensor>& biases,
                                      const TensorParallel& tp = {});
// A linear layer that closes a block (o_proj, down_proj). `bias` may be undefined. With tensor
// parallelism the weight is this rank's columns, the result is leave_block's, and the whole bias is
// added once, after the sum.
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const TensorParallel& tp = {});

// RMSNorm over the last dimension (statistics in fp32; the weight multiplies in the dtype of x).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// {a + b, rms_norm(a + b)}.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& a, const at::Tensor& b,
                                               const at::Tensor& weight, double eps);

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// y = body(x, parameters) without keeping activations: backward runs `body` again with gradients
// on. `body` must be pure.
using LayerBody =
    std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;
at::Tensor checkpointed(const LayerBody& body, const at::Tensor& x,
                        const std::vector<at::Tensor>& parameters);

// Whether the fused paths apply: fp32 on the CPU, contiguous.
bool fused_path(const at::Tensor& x);

}  // namespace retort::models
