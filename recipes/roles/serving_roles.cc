#include "recipes/roles/serving_roles.h"

#include <algorithm>
#include <utility>

#include "recipes/type/registry.h"

namespace retort::recipes {

std::vector<std::string> frozen_roles(const Recipe& recipe) {
  return recipe_type(recipe).frozen_roles(recipe);
}

std::vector<std::string> serving_roles(const Recipe& recipe) {
  std::vector<std::string> names = frozen_roles(recipe);
  for (std::string& role : reward_roles(recipe))
    if (std::find(names.begin(), names.end(), role) == names.end())
      names.push_back(std::move(role));
  if (recipe.generation) names.push_back(recipe.generation->role);
  if (recipe.environment) names.push_back(recipe.environment->role);
  return names;
}

}  // namespace retort::recipes
