// What is right and wrong in the files that a recipe of distillation names.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// What caps a teacher's logits is not sent with its head.
void check_hidden_states(const Recipe& recipe, const RecipePlaces& places);

// Refuses more ids for a target token than the vocabulary has that both sides know.
void check_loss_top_k(const Recipe& recipe, const RecipePlaces& places);

// A cache must hold what the recipe asks for.
void open_caches(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
