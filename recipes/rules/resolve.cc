// Fills in the keys that follow from other keys of a recipe.
#include "recipes/rules/rules.h"

#include <algorithm>
#include <cstdint>

#include "recipes/type/registry.h"
#include "roles/episodes/episode.h"

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

// An episode may begin anew after it has waited for as long as it may, so a sample takes longer
// than one that is drawn at a stretch.
void resolve_generation_timeout(Recipe& recipe, const RecipePlaces& places) {
  if (!recipe.environment || !recipe.generation || places.written({"generation", "timeout"}))
    return;
  const int64_t attempts = 1 + roles::EpisodeOptions().restarts;
  recipe.generation->timeout =
      GenerationOptions().timeout + attempts * recipe.environment->episode_timeout;
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
