// `retort check` of grpo: what becomes of rewards, and of a ratio that is 1.
#pragma once

#include "recipes/type/self_check.h"

namespace retort::recipes {

// After check_prompts and check_rewards: a group whose rewards rise has advantages that rise and
// sum to 0, against the formula in fp64; with equal weights on both sides the ratio is 1, nothing
// is clipped, the loss is minus the advantage, and its gradient makes a better sample more likely.
void check_grpo_numbers(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
