// Keys of every recipe that the rest of it makes pointless.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::launch {

// Refuses a key that does not have its default and changes nothing: kInvalidArgument with
// file:line. The roles are checked. What one type of recipe makes pointless is refused by the type.
void check_effects(const recipes::Recipe& recipe, const recipes::RecipePlaces& places);

}  // namespace retort::launch
