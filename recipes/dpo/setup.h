// The recipe `dpo` as the program sees it.
#pragma once

#include "recipes/recipe_type.h"

namespace retort::recipes {

const RecipeType* dpo_type();

}  // namespace retort::recipes
