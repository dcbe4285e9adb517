// retort check: the recipe's own self-checks.
#include <cstdio>

#include "launch/commands/commands.h"
#include "launch/commands/model_check.h"
#include "launch/yaml/recipe_file.h"
#include "models/loaded_model.h"
#include "recipes/registry.h"

namespace retort::launch {

int run_check(const RecipeCommand& command) {
  const recipes::Recipe recipe = load_recipe(command.recipe, command.overrides, {.cuda = true});
  check_models(recipe);
  recipes::SelfCheck check(models::load_model(recipe.student().model, "float32"));
  recipes::recipe_type(recipe).self_check(recipe, check);
  std::printf("all checks passed\n");
  return 0;
}

}  // namespace retort::launch
