// What `launch.backend: kubernetes` asks of a recipe.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::launch {

// Before anything is checked, of keys that are not written: launch.stop_timeout fits Kubernetes'
// usual grace period, and roles.<name>.restarts is 0.
void resolve_kubernetes(recipes::Recipe& recipe, const recipes::RecipePlaces& places);

// Refuses what could not run in pods, and launch.kubernetes with another backend.
void check_kubernetes(const recipes::Recipe& recipe, const recipes::RecipePlaces& places);

}  // namespace retort::launch
