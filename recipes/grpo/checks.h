// What is right and wrong in a recipe of grpo, beyond its own block.
#pragma once

#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"

namespace retort::recipes {

void check_grpo(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
