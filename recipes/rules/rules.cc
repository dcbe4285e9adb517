#include "recipes/rules/rules.h"

#include "recipes/rules/block_rules.h"
#include "recipes/rules/data.h"
#include "recipes/rules/generation.h"
#include "recipes/rules/models.h"
#include "recipes/rules/train.h"
#include "recipes/type/registry.h"

namespace retort::recipes {

void check_rules(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                 const RuleOptions& options) {
  const RecipeType& type = recipe_type(recipe);

  // The first two rules refuse a recipe without a student; all later ones read it without asking.
  check_blocks(recipe, places);
  check_roles(recipe, places, launcher, options.has_cuda);
  check_environment(recipe, places);
  check_data(recipe.data, recipe.train, places);
  check_hosts(recipe, places, launcher);
  check_min_dp(recipe.launch, recipe.student(), recipe.train, places);
  check_launcher_lost(recipe.launch, places);
  check_rpc(recipe, places);
  check_data_effects(recipe.data, places);
  check_train(recipe.train, recipe.data, recipe.student(), type, places);
  check_collective_timeout(recipe, places);
  check_least_rate(recipe.train, places);
  check_devices(recipe, places, launcher, options.is_launched);
  check_ports(recipe, places, launcher, options.is_launched);

  // These rules are about what the roles do for one another.
  check_reward_roles(recipe, places);
  if (recipe.generation) check_generation(recipe, places);
  check_external_roles(recipe, places);
  check_lora(recipe, places);
  type.check(recipe, places);

  // Files come last, so that nothing is read for a recipe that is refused anyway. Those of pods are
  // not on this host.
  const bool are_here = recipe.launch.backend != Backend::kKubernetes;
  if (!options.check_files || !are_here) return;
  check_model_folders(recipe, places);
  check_source_files(recipe.data, places);
  check_lora_files(recipe, places);
  check_judge_templates(recipe.rewards, places);

  if (!options.check_inputs) return;
  check_drawn_length(recipe, places);
  check_turns(recipe, places);
  type.check_inputs(recipe, places);
}

}  // namespace retort::recipes
