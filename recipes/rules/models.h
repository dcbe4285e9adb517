// Rules of the models of a recipe's roles, by what their folders say.
#pragma once

#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"

namespace retort::recipes {

// Models must be there, fit their role's layout, and score where they are asked for scores. Reads
// configs.
void check_model_folders(const Recipe& recipe, const RecipePlaces& places);

// Checks that the models fit together, once the recipe is read: errors name the role, not its line.
// Reads tokenizers and configs, no weights. kInvalidArgument: a tokenizer that numbers tokens
// differently from the student's, or a generator whose model has another shape than the student's,
// whose weights it takes over.
void check_models(const Recipe& recipe);

}  // namespace retort::recipes
