// What holds for every recipe, whatever its type: top-level keys, roles, worlds, data and files.
#pragma once

#include "launch/yaml/recipe_file.h"
#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::launch {

// kInvalidArgument with file:line for what can only be seen by looking at several blocks, or
// outside the recipe; the type's own checks are part of it. kUnavailable for a device that this
// build or machine lacks.
void check_recipe(const recipes::Recipe& recipe, const recipes::RecipePlaces& places,
                  const LoadOptions& options);

}  // namespace retort::launch
