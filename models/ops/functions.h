// Differentiable building blocks of a decoder layer. Each has a fused fp32 CPU path and an ATen
// path for other dtypes and devices. Private to models/. Shape legend: N rows, H hidden, V
// vocabulary, I intermediate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "models/config/activation.h"
#include "models/ops/tensor_parallel.h"

namespace retort::models {

// Linear layers that read the same input (q, k, v; gate, up): one pass over dx in backward.
// `biases` is empty or has one for each weight. With tensor parallelism the weights are this rank's
// rows, and enter_block is done inside: x is what enter_block takes. Of a weight in bfloat16 on a
// device backward adds the gradient to the weight's float32 sum, if it has one
// (parallel/gradient_sink.h), and gives autograd none; also inside of checkpointed().
// Collectives: those of enter_block; with `sequence` one all-gather more in backward, which gathers
// the input again rather than keep it.
std::vector<at::Tensor> column_linear(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                                      const std::vector<at::Tensor>& biases,
                                      const TensorParallel& tp = {});
// A linear layer that closes a block (o_proj, down_proj). `bias` may be undefined. With tensor
// parallelism the weight is this rank's columns, and leave_block is done inside; the bias, whole on
// every rank, is added after its sum.
// Collectives: those of leave_block.
at::Tensor row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const TensorParallel& tp = {});

// RMSNorm over the last dimension (statistics in fp32; the weight multiplies in the dtype of x).
// With `unit_offset` 1 + weight multiplies instead, in fp32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    bool unit_offset = false);
// {a + b, rms_norm(a + b)}.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& a, const at::Tensor& b,
                                               const at::Tensor& weight, double eps,
                                               bool unit_offset = false);

// RMS norms of each head of q and k (Qwen3, Gemma 3); undefined weights: none.
struct HeadNorms {
  at::Tensor q, k;  // [head_dim]
  double eps = 0;
  bool unit_offset = false;
};
// Those of x [N, heads * head_dim]; `weight` is norms.q or norms.k.
at::Tensor head_norm(const at::Tensor& x, const at::Tensor& weight, const HeadNorms& norms,
                     int64_t head_dim);

// activation(gate) * up.
at::Tensor gated(const at::Tensor& gate, const at::Tensor& up, Activation activation);

// y = body(x, parameters) without keeping activations: backward runs `body` again with gradients
// on. `body` must be pure.
using LayerBody =
    std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;
at::Tensor checkpointed(const LayerBody& body, const at::Tensor& x,
                        const std::vector<at::Tensor>& parameters);

// True when the fused paths apply: fp32 on the CPU, contiguous.
bool fused_path(const at::Tensor& x);

}  // namespace retort::models
