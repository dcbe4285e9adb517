// The recipe `sft` as the program sees it.
#pragma once

#include "recipes/type/recipe_type.h"

namespace retort::recipes {

const RecipeType* sft_type();

}  // namespace retort::recipes
