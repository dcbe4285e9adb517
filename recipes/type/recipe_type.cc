#include "recipes/type/recipe_type.h"

#include "base/error.h"

namespace retort::recipes {

void RecipeType::check_cache(const Recipe& recipe) const {
  throw Error(ErrorCode::kInvalidArgument,
              "retort cache: recipe: " + recipe.recipe.text +
                  " has no teacher whose payloads could be kept; it is for recipe: distill");
}

void RecipeType::write_cache(const RankContext&) const {
  RETORT_CHECK(false) << "a recipe that check_cache() refuses";
}

}  // namespace retort::recipes
