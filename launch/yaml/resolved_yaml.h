// A recipe as YAML with every key of it: what a run, its ranks and its next launcher read again.
#pragma once

#include <string>

#include "recipes/document/recipe.h"

namespace retort::launch {

// Every field of the recipe as YAML, but null for the values of roles.*.env, which may be secrets.
// load_recipe of this text gives the same recipe, with those of its environment.
std::string resolved_yaml(const recipes::Recipe& recipe);

}  // namespace retort::launch
