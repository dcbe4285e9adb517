// Fills in the keys that follow from other keys of a recipe.
#include "recipes/rules/rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "recipes/run/inputs/episode_options.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

// A role with `external` gets the tokenizer's folder as its model and a replica for each address. A
// recipe that says otherwise is refused.
void resolve_external_roles(Recipe& recipe, const RecipePlaces& places) {
  for (auto& [name, role] : recipe.roles) {
    if (!role.external) continue;
    // A saved recipe has these keys written with what was filled in, which is not refused.
    if (places.written({"roles", name, "model"}) && role.model != role.external->tokenizer)
      places.refuse({"roles", name, "model"},
                    "a role has a `model` or is `external`; remove one of the two");
    role.model = role.external->tokenizer;

    const auto replicas = std::max<int64_t>(1, static_cast<int64_t>(role.external->url.size()));
    const bool one_each = role.world.world_size() == replicas && role.world.dp == replicas &&
                          role.world.device == parallel::Device::kCpu;
    if (places.written({"roles", name, "world"}) && !one_each)
      places.refuse({"roles", name, "world"},
                    "an external role has a process for each address; write several under "
                    "external.url");
    role.world.dp = replicas;

    // The dtype is that of the copy of the student that a generator's process keeps.
    if (!recipe.roles.contains(Recipe::kDrivingRole)) continue;
    const FloatType students = recipe.student().dtype;
    if (places.written({"roles", name, "dtype"}) && role.dtype != students)
      places.refuse({"roles", name, "dtype"}, "an external engine has its own; remove the key");
    role.dtype = students;
  }
}

// grpo.sampling_correction: auto becomes what the generator calls for: an engine of others computes
// its probabilities in another way than the trainer.
void resolve_sampling_correction(Recipe& recipe) {
  if (!recipe.grpo || recipe.grpo->sampling_correction != CorrectionChoice::kAuto) return;
  const bool external = recipe.generation && recipe.roles.contains(recipe.generation->role) &&
                        recipe.roles.at(recipe.generation->role).external;
  recipe.grpo->sampling_correction =
      external ? CorrectionChoice::kSequenceMask : CorrectionChoice::kNone;
}

// Counts how often the environment is full before a round is drawn: all generators together have
// its episodes of one time. At least 1, also for numbers that are refused later.
double fillings_of_environment(const Recipe& recipe) {
  const std::string& name = recipe.environment->role;
  if (!recipe.roles.contains(name) || !recipe.roles.at(name).environment ||
      !recipe.roles.contains(Recipe::kDrivingRole))
    return 1;
  const double episodes = recipe_type(recipe).episodes_at_once(recipe).value_or(0);
  const RoleOptions& role = recipe.roles.at(name);
  const double room =
      static_cast<double>(role.environment->episodes) * static_cast<double>(role.world.dp);
  return room > 0 ? std::max(1.0, std::ceil(episodes / room)) : 1;
}

// A request is answered once all of its episodes have ended. Those that find no room wait for
// others, and each may begin anew after it has waited for as long as it may.
void resolve_generation_timeout(Recipe& recipe, const RecipePlaces& places) {
  if (!recipe.environment || !recipe.generation || places.written({"generation", "timeout"}))
    return;
  constexpr double kLongest = 1e15;  // ms; above it nothing is a time
  const auto wait = static_cast<double>(longest_wait(*recipe.environment).count());
  const double waits = std::min(kLongest, fillings_of_environment(recipe) * wait);
  recipe.generation->timeout =
      GenerationOptions().timeout + Duration(static_cast<Duration::rep>(waits));
}

// With launch.backend: kubernetes, keys that are not written fit a cluster: launch.stop_timeout
// lies within Kubernetes' usual grace period, and roles.<name>.restarts is 0, because nobody starts
// a single process again.
void resolve_kubernetes(Recipe& recipe, const RecipePlaces& places) {
  if (recipe.launch.backend != Backend::kKubernetes) return;
  if (!places.written({"launch", "stop_timeout"}))
    recipe.launch.stop_timeout = kPodGrace - kPodMargin;
  for (auto& [name, role] : recipe.roles)
    if (name != Recipe::kDrivingRole && !places.written({"roles", name, "restarts"}))
      role.restarts = 0;
}

}  // namespace

void resolve_recipe(Recipe& recipe, const RecipePlaces& places) {
  const RecipeType& type = recipe_type(recipe);
  const bool lora =
      recipe.roles.contains(Recipe::kDrivingRole) && recipe.student().lora.has_value();
  recipe.train.resolve(type.learning_rate(lora));
  recipe.launch.resolve(places.written({"launch", "stop_timeout"}));
  type.resolve(recipe, places);
  resolve_external_roles(recipe, places);
  resolve_sampling_correction(recipe);
  if (recipe.generation && !recipe.weight_sync) recipe.weight_sync.emplace();
  resolve_generation_timeout(recipe, places);
  resolve_kubernetes(recipe, places);
}

}  // namespace retort::recipes
