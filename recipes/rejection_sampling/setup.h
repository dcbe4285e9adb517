// The recipe `rejection_sampling` as the program sees it.
#pragma once

#include "recipes/type/recipe_type.h"

namespace retort::recipes {

const RecipeType* rejection_sampling_type();

}  // namespace retort::recipes
