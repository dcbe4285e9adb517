// roles.<name>.devices of a recipe.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::launch {

// Refuses lists that have no effect, that no host can have, or that have fewer devices than the
// role has ranks on a host. `is_launched`: by retort launch, which knows where each process is.
void check_devices(const recipes::Recipe& recipe, const recipes::RecipePlaces& places,
                   bool is_launched);

}  // namespace retort::launch
