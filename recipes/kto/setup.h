// The recipe `kto` as the program sees it.
#pragma once

#include <cstdint>

#include "recipes/kto/objective.h"
#include "recipes/type/recipe_type.h"

namespace retort::recipes {

const RecipeType* kto_type();

// What the objective of one data-parallel rank of the student is made with.
KtoObjective::Options kto_objective_options(const KtoOptions& options, int64_t dp_rank,
                                            int64_t dp_size);

}  // namespace retort::recipes
