// What tensor-parallel ranks exchange in a layer, as differentiable mappings. Private to models/.
// Source: Shoeybi et al. 2019 (f and g), Korthikanti et al. 2022 (sequence parallelism).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include "parallel/group.h"

namespace retort::models {

// Each of n ranks has a slice of every layer. Between attention and MLP blocks every rank has the
// whole residual stream, or, with `sequence`, an n-th of its rows (n divides their number).
struct TensorParallel {
  parallel::Group* group = nullptr;
  bool sequence = false;
  bool active() const { return group != nullptr && group->size() > 1; }
};

// Rows of the residual stream -> the input of column-parallel layers, [R, H] on every rank.
// Collectives: on tp, of R * H elements: forward none, backward one all-reduce; with `sequence`
// forward one all-gather, backward one reduce-scatter.
at::Tensor enter_block(const at::Tensor& x, const TensorParallel& tp);
// The ranks' parts of the output of a row-parallel layer or of the embedding, [R, H] each, -> their
// sum as rows of the residual stream. An all-reduce is in place: `y` must be a fresh result.
// Collectives: on tp, of R * H elements: forward one all-reduce, backward none; with `sequence`
// forward one reduce-scatter, backward one all-gather.
at::Tensor leave_block(const at::Tensor& y, const TensorParallel& tp);

// The collectives of these mappings, without autograd.
// all-gather: [R/n, H] -> [R, H]
at::Tensor gather_rows(const at::Tensor& x, const TensorParallel& tp);
// reduce-scatter: [R, H] -> [R/n, H]
at::Tensor sum_and_scatter_rows(const at::Tensor& x, const TensorParallel& tp);
// The gradient of a block's input from this rank's part of it [R, H], which may be overwritten:
// all-reduce, or reduce-scatter.
at::Tensor sum_input_gradient(at::Tensor part, const TensorParallel& tp);

// Carries a TensorParallel through an autograd context.
struct TensorParallelHolder : torch::CustomClassHolder {
  explicit TensorParallelHolder(TensorParallel value) : tp(value) {}
  TensorParallel tp;
};
c10::IValue to_ivalue(const TensorParallel& tp);
TensorParallel from_ivalue(const c10::IValue& value);

}  // namespace retort::models
