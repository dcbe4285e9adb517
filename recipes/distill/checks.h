// What is right and wrong in a recipe of distillation, beyond its own block.
#pragma once

#include <string>
#include <vector>

#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"

namespace retort::recipes {

// A recipe that names no teacher and has a role `teacher` means that one; without such a role it is
// refused.
void assume_teacher(Recipe& recipe, const RecipePlaces& places);

// Each once, in the order in which the block names them.
std::vector<std::string> teacher_roles(const DistillOptions& distill);

void check_distill(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
