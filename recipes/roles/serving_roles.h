// The roles of a recipe that answer requests, by what its type asks of them.
#pragma once

#include <string>
#include <vector>

#include "recipes/document/recipe.h"

namespace retort::recipes {

// Roles that hold a frozen model, in the order in which the recipe names them: teachers and
// references.
std::vector<std::string> frozen_roles(const Recipe& recipe);
// The frozen roles, those that score, the generator and the environment: all that serve. Their
// tokenizers must be the student's, but for judges and environments.
std::vector<std::string> serving_roles(const Recipe& recipe);

}  // namespace retort::recipes
