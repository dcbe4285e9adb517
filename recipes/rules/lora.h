// What a recipe says of `roles.student.lora`, checked.
#pragma once

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// Roles that do not train have no adapter. An adapter alone is pushed to a generator of ours that
// has the student's model.
void check_lora(const Recipe& recipe, const RecipePlaces& places);
// The model has the matrices that are adapted, and the folder of the adapter that training starts
// from is there, with the recipe's settings.
void check_lora_files(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
