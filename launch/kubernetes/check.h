// What `launch.backend: kubernetes` asks of a recipe.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::launch {

// Refuses what could not run in pods, and launch.kubernetes with another backend.
void check_kubernetes(const recipes::Recipe& recipe, const recipes::RecipePlaces& places);

}  // namespace retort::launch
