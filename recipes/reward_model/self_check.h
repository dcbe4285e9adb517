// `retort check` of reward models.
#pragma once

#include "recipes/type/self_check.h"

namespace retort::recipes {

// The first pair whose completions differ: its scores with and without a shared prompt, the loss
// against the formula, and the direction of its gradient.
void check_reward_model_numbers(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
