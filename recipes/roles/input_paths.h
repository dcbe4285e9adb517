// Every file and folder that a run reads.
#pragma once

#include <vector>

#include "recipes/document/recipe.h"
#include "recipes/type/recipe_type.h"

namespace retort::recipes {

// Models, keys, templates, data, and what the recipe's type reads besides, each with its key and
// its role. A judge is asked in words: nobody reads its model.
std::vector<InputPath> input_paths(const Recipe& recipe);

}  // namespace retort::recipes
