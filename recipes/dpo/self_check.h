// `retort check` of preference pairs.
#pragma once

#include "recipes/self_check.h"

namespace retort::recipes {

// The first pair whose completions differ: log-probabilities with and without a shared prompt, the
// loss at equal models, and the direction of its gradient; then the reference's vocabulary.
void check_dpo_numbers(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
