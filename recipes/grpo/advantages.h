// The advantages of a round's samples, as the recipe's options say.
#pragma once

#include "recipes/grpo/options.h"
#include "recipes/losses/advantages.h"

namespace retort::recipes {

// `rewards` [G * num_generations] of the global batch, as in recipes/losses/advantages.h.
losses::Advantages grpo_advantages(const at::Tensor& rewards, int64_t num_generations,
                                   const GrpoOptions& options);

}  // namespace retort::recipes
