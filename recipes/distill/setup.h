// The recipes `distill` and `on_policy_distill`, which is distill with lmbda 1, as the program sees
// them.
#pragma once

#include "recipes/type/recipe_type.h"

namespace retort::recipes {

const RecipeType* distill_type();
const RecipeType* on_policy_distill_type();

}  // namespace retort::recipes
