// The recipe `grpo` as the program sees it.
#pragma once

#include "recipes/recipe_type.h"

namespace retort::recipes {

const RecipeType* grpo_type();

}  // namespace retort::recipes
