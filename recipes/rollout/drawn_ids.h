// The ids that completions are drawn from, and what the trainer leaves out of its softmax for that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/decoder/decoder.h"
#include "recipes/run/rank/recipe_run.h"

namespace retort::recipes {

// Completions hold ids below this: those of the tokenizer, for a generator draws nothing that has
// no text. 0: every row of the head, which is what engines that are not ours draw from, and what
// there is where a head has no more rows than the tokenizer ids.
int64_t num_drawn_ids(const RunContext& context);

// A bias [rows of `head`] for losses::linear_log_probs that leaves ids from `num_ids` on out, so
// that log-probabilities are of the distribution that was drawn from: its ratio to itself is 1,
// however much mass such rows have. Undefined for num_ids 0. The same on every rank of a split
// vocabulary: there, or undefined.
at::Tensor bias_of_drawn_ids(const models::Head& head, int64_t num_ids);

}  // namespace retort::recipes
