// Rules of the blocks `generation:` and `weight_sync:`, and what several recipe types ask of them.
#pragma once

#include "recipes/document/generation_options.h"
#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"

namespace retort::recipes {

// Checks the role that the block names, and lengths. The recipe must have the block.
void check_generation(const Recipe& recipe, const RecipePlaces& places);
// A model whose rotary frequencies depend on a sequence's length (longrope, dynamic) is drawn from
// only up to the length where they begin to (Rope::fixed_length). Refused where
// generation.max_new_tokens leaves no room for a prompt below it; what a longer prompt asks for the
// generator refuses by name when it is asked. Reads the generator's config.json; nothing of an
// external one, which rotates by rules of its own.
void check_drawn_length(const Recipe& recipe, const RecipePlaces& places);

// All rules below are for RecipeType::check. This one is for a recipe that pushes the weights
// before each draw, with nothing in flight.
void check_draws_with_student_of_now(const WeightSyncOptions& weight_sync,
                                     const RecipePlaces& places);
// For a recipe that compares samples of one prompt, which must not be equal.
void check_samples_differ(const GenerationOptions& generation, const RecipePlaces& places);

}  // namespace retort::recipes
