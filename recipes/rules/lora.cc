// Rules of roles.student.lora.
#include "recipes/rules/block_rules.h"

#include <filesystem>
#include <string>

#include "base/error.h"
#include "models/checkpoint/adapter.h"
#include "models/checkpoint/checkpoint.h"
#include "models/config/config.h"
#include "models/lora/lora_targets.h"
#include "recipes/roles/adapter.h"
#include "recipes/run/inputs/student_model.h"

namespace retort::recipes {
namespace {

models::LoraConfig all_linear() { return {.target_modules = {std::string(models::kAllLinear)}}; }

// A generator adds the adapter that it is sent to its own model, which must be the one that the
// adapter is trained on.
void check_pushed_adapter(const Recipe& recipe, const RecipePlaces& places) {
  if (!recipe.generation)
    places.refuse({"roles", Recipe::kDrivingRole, "lora", "push"},
                  "has no effect: nothing is drawn, so nothing is pushed; remove the key");
  const std::string& name = recipe.generation->role;
  if (!recipe.roles.contains(name)) return;
  const RoleOptions& generator = recipe.roles.at(name);
  if (generator.external)
    places.refuse({"roles", Recipe::kDrivingRole, "lora", "push"},
                  "adapter is for a generator of ours; the engine of '" + name +
                      "' takes whole weights: use push: merged");

  const auto folder = [](const std::string& model) {
    const auto path = std::filesystem::path(model).lexically_normal();
    return path.has_filename() ? path : path.parent_path();
  };
  if (folder(generator.model) != folder(recipe.student().model))
    places.refuse({"roles", name, "model"},
                  "with roles.student.lora.push: adapter the generator computes with its own model "
                  "and the adapter; give it the student's, '" +
                      recipe.student().model + "'");
}

// Checks that the modules that are trained whole are in the model, and may be trained so.
void check_saved_modules(const models::ModelConfig& model, const models::LoraConfig& lora,
                         const RecipePlaces& places) {
  const KeyPath key{"roles", Recipe::kDrivingRole, "lora", "modules_to_save"};
  try {
    models::saved_parameters(model, lora);
  } catch (const Error& error) {
    places.refuse(key, error.message());
  }
  const auto unmatched = models::unmatched_module(model, lora);
  if (!unmatched) return;
  const bool tied = model.tie_word_embeddings && std::string("lm_head").ends_with(*unmatched);
  places.refuse(key, "'" + *unmatched + "' is the end of no layer's name in this model" +
                         (tied ? ", whose head is its embedding (tie_word_embeddings)"
                               : "; expected embed_tokens, lm_head or norm"));
}

}  // namespace

void check_lora(const Recipe& recipe, const RecipePlaces& places) {
  for (const auto& [name, role] : recipe.roles)
    if (role.lora && name != Recipe::kDrivingRole)
      places.refuse({"roles", name, "lora"},
                    "is for the role that trains; " + name +
                        " serves a whole model: merge an adapter with `retort model merge`");
  if (pushes_adapter(recipe)) check_pushed_adapter(recipe, places);
}

void check_lora_files(const Recipe& recipe, const RecipePlaces& places) {
  const auto& lora = recipe.student().lora;
  if (!lora) return;
  const models::ModelConfig model = role_config(recipe, Recipe::kDrivingRole);
  const KeyPath targets{"roles", Recipe::kDrivingRole, "lora", "target_modules"};
  try {
    models::adapted_modules(model, student_adapter(recipe));
  } catch (const Error& error) {
    places.refuse(targets, error.message());
  }
  if (const auto unmatched = models::unmatched_target(model, student_adapter(recipe)))
    places.refuse(targets, "'" + *unmatched + "' names no linear layer of this model; " +
                               "expected names among " +
                               modules_text(models::with_named_targets(model, all_linear())));
  check_saved_modules(model, student_adapter(recipe), places);
  if (!lora->adapter) return;

  // An adapter to go on with must be as the recipe says.
  const KeyPath key{"roles", Recipe::kDrivingRole, "lora", "adapter"};
  if (!std::filesystem::is_regular_file(std::filesystem::path(*lora->adapter) /
                                        models::kAdapterConfigFile))
    places.refuse(key, "'" + *lora->adapter + "' has no " + models::kAdapterConfigFile +
                           "; expected the folder of a PEFT adapter");
  std::string difference;
  try {
    difference = lora_difference(model, models::read_adapter_config(*lora->adapter),
                                 student_adapter(recipe));
  } catch (const Error& error) {
    places.refuse(key, error.message());
  }
  if (!difference.empty())
    places.refuse(key, "the adapter was made with other settings (" + difference +
                           "); write them into the recipe");
  try {
    models::check_adapter(model, *lora->adapter);
  } catch (const Error& error) {
    places.refuse(key, error.message());
  }
}

}  // namespace retort::recipes
