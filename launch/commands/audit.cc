// retort audit: samples as the trainer sees them.
#include "launch/commands/commands.h"
#include "launch/yaml/recipe_file.h"
#include "recipes/registry.h"

namespace retort::launch {

int run_audit(const RecipeCommand& command) {
  const recipes::Recipe recipe = load_recipe(command.recipe, command.overrides, {.cuda = true});
  recipes::recipe_type(recipe).audit(recipe, command.samples);
  return 0;
}

}  // namespace retort::launch
