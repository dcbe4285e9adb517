// The options of a run's batches, from its recipe.
#pragma once

#include <cstdint>

#include "recipes/data/batches.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// Returns the options of data-parallel rank `dp_rank` of the student.
data::BatchOptions batch_options(const Recipe& recipe, int64_t dp_rank);

}  // namespace retort::recipes
