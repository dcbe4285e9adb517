// `retort audit` of a recipe that draws completions of its prompts: there are no targets yet.
#pragma once

#include <cstdint>

#include "recipes/document/recipe.h"

namespace retort::recipes {

// Prints the first `num_prompts` prompts as the generator gets them, with the reference that
// rewards compare with, and counts all.
void audit_prompts(const Recipe& recipe, int64_t num_prompts);

}  // namespace retort::recipes
