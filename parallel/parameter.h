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
  // How many tensor-parallel ranks hold the same slice: those ranks r with the same r / copies.
  // Norms have copies = tp; key and value heads have copies when there are fewer of them than
  // ranks.
  int64_t copies = 1;
  // Each of the copies computes a part of the gradient only, and the gradient is their sum. If
  // false, every copy computes all of it.
  bool partial_gradient = false;
  // The first and the last pipeline stage both hold a tied embedding, whose gradient is the sum of
  // theirs.
  bool tied_stages = false;
  // True for exactly one holder of every slice: its rank counts the slice in norms and writes it to
  // checkpoints.
  bool counted = true;
};

struct NamedParameter {
  std::string name;
  at::Tensor value;  // leaf, requires_grad
  ParameterShard shard{};
};

// What one rank saves or loads: elements [begin, begin + values.numel()), row-major, of a slice of
// a whole tensor.
struct TensorPiece {
  std::string name;
  std::vector<int64_t> shape;        // of the whole tensor
  std::vector<int64_t> slice_shape;  // of the slice
  // The slice is [offset, offset + slice_shape[dim]) of dimension `dim`.
  int64_t dim = 0;
  int64_t offset = 0;
  int64_t begin = 0;
  at::Tensor values;  // one dimension, contiguous
};

}  // namespace retort::parallel
