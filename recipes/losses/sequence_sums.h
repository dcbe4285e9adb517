// Sums of one value a row by the sequence that the row belongs to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace retort::losses {

// `values` [R] float, `sequence_of_row` [R] int64 -> [num_sequences] float32, with autograd. Added
// in fp64, so that a long sequence loses nothing.
at::Tensor sum_by_sequence(const at::Tensor& values, const at::Tensor& sequence_of_row,
                           int64_t num_sequences);

}  // namespace retort::losses
