// `retort check` of a recipe that draws completions of its prompts: there are no targets yet.
#pragma once

#include "recipes/self_check.h"

namespace retort::recipes {

// All prompts of data.train and data.eval, opened as the run opens them: that some can be used, and
// that each has the reference that exact_match and numeric compare with (kInvalidArgument naming
// the row). Then a short greedy completion of the first: its log-probabilities as a generator and
// as the trainer compute them, and its cross-entropy against fp64. Starts no reward's program and
// asks no service.
void check_prompts(SelfCheck& check, const Recipe& recipe);

}  // namespace retort::recipes
