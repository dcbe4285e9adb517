// The header that goes before each tensor between two pipeline stages: eight int64 that say what
// the message is and what memory it needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "parallel/pipeline_schedule.h"

namespace retort::parallel::detail {

struct PipelineHeader {
  PipelineAction label;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;  // at most two
};

// magic and version, kind, chunk, micro-batch, dtype, dim, size 0, size 1
using PipelineHeaderWords = std::array<int64_t, 8>;

// kInvalidArgument: more than two dimensions, or a dtype that is neither a floating-point, an
// integral nor the bool type.
PipelineHeaderWords encode(const PipelineHeader& header);
// Throws kMismatch for another version of this layout, kCorrupt for words that are no header or
// whose sizes, dtype or label cannot be.
PipelineHeader decode(const PipelineHeaderWords& words);

// "Float[3, 4]"
std::string describe(at::ScalarType dtype, at::IntArrayRef sizes);

}  // namespace retort::parallel::detail
