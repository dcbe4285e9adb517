// `retort audit` of judged completions.
#pragma once

#include <cstdint>

#include "recipes/document/recipe.h"

namespace retort::recipes {

// The first `num_rows` rows with their labels, and counts of all.
void audit_labels(const Recipe& recipe, int64_t num_rows);

}  // namespace retort::recipes
