// `retort check` of judged completions.
#pragma once

#include "recipes/type/self_check.h"

namespace retort::recipes {

// The first rows of the run: log-probabilities together and alone, the loss where student and
// reference are equal, the direction of its gradient for each label; then the reference's
// vocabulary.
void check_kto_numbers(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
