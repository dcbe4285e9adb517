// Refuses sequences that a generator of ours cannot draw.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// A model whose rotary frequencies depend on a sequence's length (longrope, dynamic) is drawn from
// only up to the length where they begin to (Rope::fixed_length). Refused where
// generation.max_new_tokens leaves no room for a prompt below it; what a longer prompt asks for the
// generator refuses by name when it is asked. Reads the generator's config.json; nothing of an
// external one, which rotates by rules of its own.
void check_drawn_length(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
