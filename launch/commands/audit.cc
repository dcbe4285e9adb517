// retort audit: samples as the trainer sees them.
#include <cstdio>

#include "launch/commands/commands.h"
#include "launch/yaml/recipe_file.h"
#include "recipes/audit.h"
#include "recipes/registry.h"

namespace retort::launch {

int run_audit(const RecipeCommand& command) {
  const recipes::Recipe recipe =
      load_recipe(command.recipe, command.overrides, {.cuda = true, .env_values = false});
  const data::RowFindings found = recipes::look_at_rows(recipe);
  std::printf("--- data: %s, %lld bad\n", found.text().c_str(),
              static_cast<long long>(found.bad.count()));
  recipes::print_unheard_end(recipe, found);
  recipes::recipe_type(recipe).audit(recipe, command.samples);
  return 0;
}

}  // namespace retort::launch
