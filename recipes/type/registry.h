// All recipe types. recipes/registry.cc, which alone sees every recipe's folder, has the list; who
// looks a type up knows none of them.
#pragma once

#include <span>
#include <string_view>

#include "recipes/type/recipe_type.h"

namespace retort::recipes {

// Lists the types in the order in which messages list them.
std::span<const RecipeType* const> recipe_types();

// kInvalidArgument listing the names when there is none of this name.
const RecipeType& recipe_type(std::string_view name);
inline const RecipeType& recipe_type(const Recipe& recipe) {
  return recipe_type(recipe.recipe.text);
}

}  // namespace retort::recipes
