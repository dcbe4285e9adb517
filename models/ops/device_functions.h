// The same functions as functions.h by the kernels of this project (kernels/device_kernels.h), for
// tensors of a device that has them. Each is one node of autograd with a kernel forward and one or
// two backward. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "models/config/activation.h"
#include "models/ops/functions.h"
#include "models/ops/rope.h"

namespace retort::models {

// True when the kernels know x, and `weight` unless it is undefined: contiguous, both float32 or
// both bfloat16, on a device that has kernels.
bool has_kernels(const at::Tensor& x, const at::Tensor& weight = {});

// x [.., width] and weight [width], width at most 8,192: rms_norm() of functions.h, rounded once.
// Kept for backward: x and 4 bytes a row.
bool norm_has_kernels(const at::Tensor& x, const at::Tensor& weight);
at::Tensor device_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                           bool unit_offset);
// a + b, rounded, and its norm. Kept: the sum, and 4 bytes a row.
std::pair<at::Tensor, at::Tensor> device_add_rms_norm(const at::Tensor& a, const at::Tensor& b,
                                                      const at::Tensor& weight, double eps,
                                                      bool unit_offset);

// act(gate) * up, rounded once. Kept: gate and up alone.
at::Tensor device_gated(const at::Tensor& gate, const at::Tensor& up, Activation activation);

// q [R, heads * head_dim] and k [R, kv_heads * head_dim] normed by head and rotated, as [R, heads,
// head_dim]. By one kernel, rounded once, where a device has kernels and head_dim is even and at
// most 256; kept: q and k as they came, if there are norms. By operators elsewhere, also on the
// CPU.
std::pair<at::Tensor, at::Tensor> normed_rotated_heads(const at::Tensor& q, const at::Tensor& k,
                                                       const HeadNorms& norms,
                                                       const RopeTable& table, int64_t head_dim);

}  // namespace retort::models
