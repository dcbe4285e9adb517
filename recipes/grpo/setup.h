// The recipe `grpo` as the program sees it.
#pragma once

#include "recipes/type/recipe_type.h"

namespace retort::recipes {

const RecipeType* grpo_type();

}  // namespace retort::recipes
