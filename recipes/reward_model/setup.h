// The recipe `reward_model` as the program sees it.
#pragma once

#include "recipes/type/recipe_type.h"

namespace retort::recipes {

const RecipeType* reward_model_type();

}  // namespace retort::recipes
