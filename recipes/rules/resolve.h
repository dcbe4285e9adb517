// What follows from other keys of a recipe, filled in before anything is checked.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// Gives each key that is not written what the others, the recipe's type and the backend call for. A
// recipe that has been resolved stays as it is. Refuses what is written and cannot hold then, with
// its place.
void resolve_recipe(Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
