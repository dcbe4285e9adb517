// Linear layers with the two factors of an adapter beside their weights. Private to models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "models/lora/lora_dropout.h"
#include "models/ops/tensor_parallel.h"

namespace retort::models {

// Of a weight [out, in]: a [r, in], b [out, r]; both undefined where it is not adapted. With tensor
// parallelism this rank's slices, as lora_specs.
struct LoraFactors {
  at::Tensor a, b;
  DropoutPlace place{};
  bool defined() const { return a.defined(); }
};

// column_linear (models/ops/functions.h), of weights some of which are adapted: for each
//   x W^T + bias + scaling * (x A^T) B^T,
// A reading x with some elements dropped where `dropout` says so. An A that follows itself is one
// that these weights share.
// Gradients by weights and biases only where they require grad.
// Collectives: those of column_linear. Memory: beside what column_linear keeps [R, r] for each A;
// with dropout for the time of a product another x, and a byte for each of its elements.
std::vector<at::Tensor> adapted_column_linear(const at::Tensor& x,
                                              const std::vector<at::Tensor>& weights,
                                              const std::vector<at::Tensor>& biases,
                                              const std::vector<LoraFactors>& factors,
                                              double scaling, const TensorParallel& tp = {},
                                              const DropoutRows& dropout = {});
// row_linear likewise, of one weight that is adapted. Collectives: those of row_linear: the rank's
// part of the product holds its part of the adapter's, which one sum over the ranks completes.
at::Tensor adapted_row_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                              const LoraFactors& factors, double scaling,
                              const TensorParallel& tp = {}, const DropoutRows& dropout = {});

}  // namespace retort::models
