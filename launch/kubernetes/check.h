// What the pods of a run ask of its recipe, beside the rules of launch.kubernetes.
#pragma once

#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"

namespace retort::launch {

// Refuses what contradicts the run: it shows when its pods are written.
void check_pods(const recipes::Recipe& recipe, const recipes::RecipePlaces& places);

}  // namespace retort::launch
