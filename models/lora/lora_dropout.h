// Dropout of what an adapter reads while it is trained (Srivastava et al. 2014, as PEFT's
// lora_dropout). Private to models/.
//
// Which elements are dropped is a pure function of the run's seed, the step, the linear layer, the
// token with all tokens before it in its sequence, and the column. So it is the same in every
// layout, with and without recomputed layers, whether a beginning that sequences share is computed
// once or with each of them, and nothing has to be kept for backward. Sequences that begin alike
// drop alike for as long as they are alike, within one step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/ops/packed.h"

namespace retort::models {

// Of one forward pass.
struct DropoutRows {
  double p = 0;       // share of the elements that are dropped; 0: none
  uint64_t seed = 0;  // of this step
  at::Tensor keys;    // [R] int64 in host memory, of each row of the residual stream

  bool active() const { return p > 0; }
  // Returns the keys of the rows [S] int64 alone, in their order.
  DropoutRows chosen(const at::Tensor& rows) const;
};

// `rows` is at least the number of tokens; what is beyond them is padding. Tokens anywhere.
DropoutRows dropout_rows(const PackedTokens& tokens, int64_t rows, double p, uint64_t seed,
                         uint64_t step);

// The place of a factor A in the model.
struct DropoutPlace {
  uint64_t module = 0;  // a number of its own for each linear layer
  int64_t column = 0;   // of the whole input, where this rank's columns begin
};

// [R, columns] bool on `device`: what is kept. Both forms have the same bits: loops on the CPU, and
// elsewhere operators, whose temporary memory is of a few rows at a time.
at::Tensor dropout_kept(const DropoutRows& rows, const DropoutPlace& place, int64_t columns,
                        at::Device device);
at::Tensor dropout_kept_by_operators(const DropoutRows& rows, const DropoutPlace& place,
                                     int64_t columns, at::Device device);

// x [R, columns] with its dropped elements 0 and the others divided by 1 - p: a new tensor, or x
// itself where none is dropped. Of a gradient by the result it makes that by x. No autograd.
at::Tensor dropped(const at::Tensor& x, const DropoutRows& rows, const DropoutPlace& place);

}  // namespace retort::models
