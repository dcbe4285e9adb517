// Rotary position embedding: angles and the tables of one packed forward. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/config/config.h"
#include "models/ops/packed.h"

namespace retort::models {

// Inverse frequencies [rotary_dim / 2], fp32, of a sequence of `length` tokens; 0: of one within
// Rope::fixed_length(). docs/models.md has the formulas.
at::Tensor rope_inverse_frequencies(const Rope& rope, int64_t head_dim, int64_t length = 0);

// cos and sin of position times inverse frequency, times the attention factor, each
// [N, rotary_dim / 2] fp32.
struct RopeTable {
  at::Tensor cos, sin;
};

// The embedding of one kind of layers.
class RotaryEmbedding {
 public:
  RotaryEmbedding() = default;
  RotaryEmbedding(const Rope& rope, int64_t head_dim, at::Device device);

  // Of sequences within fixed_length(), whichever they are. `positions` [N] on the device.
  RopeTable table(const at::Tensor& positions) const;
  // `positions` [N]: those of `tokens`, and of any padding behind them. Where frequencies depend on
  // a sequence's length, each sequence has its own. kInvalidArgument for one that forks into
  // branches whose lengths ask for different ones: they share the keys of their prefix.
  RopeTable table(const at::Tensor& positions, const PackedTokens& tokens) const;

  const at::Tensor& inverse_frequencies() const { return inverse_frequencies_; }
  double attention_factor() const { return rope_.attention_factor; }

 private:
  int64_t scaled_length(const PackedTokens& tokens, int64_t sequence) const;
  RopeTable table_of(const at::Tensor& angles) const;

  Rope rope_;
  int64_t head_dim_ = 0;
  at::Tensor inverse_frequencies_;
};

// x [N, heads, head_dim] with its first dimensions, as many as the table is for, rotated, by ATen
// operators (any dtype, any device, differentiable); the table is rounded to x's dtype.
at::Tensor rotate(const at::Tensor& x, const RopeTable& table);

}  // namespace retort::models
