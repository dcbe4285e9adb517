// Completions, each after its prompt, laid out for a model that reads them side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/ops/packed.h"

namespace retort::data {

// A prompt and what follows it, neither of them empty, at most max_length tokens together.
struct PromptedCompletion {
  std::vector<int32_t> prompt_ids, completion_ids;
};

// B completions laid out as B sequences, each after its prompt. R = tokens of all completions, all
// of which are predicted. May be empty (B 0, R 0).
struct CompletionBatch {
  models::PackedTokens tokens;
  at::Tensor predict_positions;  // [R] int64, increasing: the position before each of those tokens
  at::Tensor targets;            // [R] int64
  at::Tensor sequence_of_row;    // [R] int64, not decreasing
  std::vector<PromptedCompletion> completions;  // [B]
  int64_t num_completions() const { return static_cast<int64_t>(completions.size()); }
};

CompletionBatch make_completion_batch(std::vector<PromptedCompletion> completions);

}  // namespace retort::data
