// Roles that an inference engine of others plays: what cannot be.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// What no engine of this kind can do in this recipe.
void check_external_roles(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
