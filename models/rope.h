// Rotary position embedding: angles and the tables of one packed forward. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/config.h"

namespace retort::models {

// Inverse frequencies [head_dim / 2], fp32.
at::Tensor rope_inverse_frequencies(const Rope& rope, int64_t head_dim);

// cos and sin of position times inverse frequency, each [N, head_dim / 2] fp32.
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable rope_table(const at::Tensor& positions, const at::Tensor& inverse_frequencies);

// x [N, heads, head_dim] rotated, by ATen operators (any dtype, any device, differentiable); the
// table is rounded to x's dtype.
at::Tensor rotate(const at::Tensor& x, const RopeTable& table);

}  // namespace retort::models
