// `retort check` of a recipe that draws completions of its prompts: there are no targets yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "recipes/data/sample.h"
#include "recipes/type/self_check.h"

namespace retort::recipes {

struct CheckedPrompts {
  std::vector<data::PromptSample> first;  // of data.train; some, at least one
  std::vector<int32_t> greedy_ids;        // how the student's completion of the first one begins
};

// All prompts of data.train and data.eval, opened as the run opens them: that some can be used, and
// that each has the reference that exact_match and numeric compare with (kInvalidArgument naming
// the row). Then a short greedy completion of the first: its log-probabilities as a generator and
// as the trainer compute them, and its cross-entropy against fp64.
CheckedPrompts check_prompts(SelfCheck& check, const Recipe& recipe);

// Holds the log-probabilities of a short completion's tokens, at the recipe's temperature: [R]
// float32 both.
struct SampledLogProbs {
  at::Tensor generator, trainer;
};

// Draws it as the recipe does. Where tokens come from the whole distribution, both must agree.
SampledLogProbs check_sampling(SelfCheck& check, const Recipe& recipe,
                               const data::PromptSample& prompt);

}  // namespace retort::recipes
