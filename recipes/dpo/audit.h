// `retort audit` of preference pairs.
#pragma once

#include <cstdint>

#include "recipes/document/recipe.h"

namespace retort::recipes {

// Both completions of the first `num_pairs` pairs, and counts of all.
void audit_pairs(const Recipe& recipe, int64_t num_pairs);

}  // namespace retort::recipes
