// A parameter as the parallel machinery sees it: its name, this rank's tensor, and which part of
// the whole that is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace retort::parallel {

// Which slice of a whole parameter a rank of a tensor-parallel group holds, and what its gradient
// lacks.
struct ParameterShard {
  std::vector<int64_t> shape;  // of the whole parameter; empty: the tensor is the whole
  int64_t dim = 0;             // the dimension that is split (any if the slice is the whole)
  int64_t begin = 0;           // this rank holds [begin, begin + value.size(dim)) of it
  // The tensor-parallel ranks r with the same r / copies hold the same slice: norms (copies = tp),
  // key and value heads when there are fewer of them than ranks.
  int64_t copies = 1;
  // Each of the copies computes a part of the gradient only: their sum is the gradient. Else every
  // copy has all of it.
  bool partial_gradient = false;
  // The first and the last pipeline stage hold a tied embedding both: the sum of their gradients is
  // the gradient.
  bool tied_stages = false;
  // Exactly one holder of every slice has it: its rank counts the slice in norms and writes it to
  // checkpoints.
  bool counted = true;
};

struct NamedParameter {
  std::string name;
  at::Tensor value;  // leaf, requires_grad
  ParameterShard shard{};
};

// Elements [begin, begin + values.numel()) of a slice (row-major) of a whole tensor: what one rank
// saves or loads.
struct TensorPiece {
  std::string name;
  std::vector<int64_t> shape;        // of the whole tensor
  std::vector<int64_t> slice_shape;  // of the slice
  // the slice is [offset, offset + slice_shape[dim]) of dimension `dim`
  int64_t dim = 0, offset = 0;
  int64_t begin = 0;
  at::Tensor values;  // one dimension, contiguous
};

}  // namespace retort::parallel
