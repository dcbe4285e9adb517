// The recipe `dpo` as the program sees it.
#pragma once

#include <cstdint>

#include "recipes/dpo/objective.h"
#include "recipes/type/recipe_type.h"

namespace retort::recipes {

const RecipeType* dpo_type();

// What the objective of one data-parallel rank of the student is made with.
DpoObjective::Options dpo_objective_options(const DpoOptions& options, int64_t dp_rank,
                                            int64_t dp_size);

}  // namespace retort::recipes
