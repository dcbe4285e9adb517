// The advantages of a round's samples, as the recipe's options say.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "recipes/document/grpo_options.h"
#include "recipes/losses/advantages.h"

namespace retort::recipes {

// What the samples of a round were given, in their global order; NaN where nothing could be scored.
struct GrpoRewards {
  at::Tensor totals;  // [G * num_generations] float64
  // With normalize_then_sum alone: [G * num_generations, K] float64, before weights, and these [K].
  at::Tensor objectives;
  std::vector<double> weights;
};

// Returns the advantages of the global batch, as in recipes/losses/advantages.h.
losses::Advantages grpo_advantages(const GrpoRewards& rewards, int64_t num_generations,
                                   const GrpoOptions& options);

}  // namespace retort::recipes
