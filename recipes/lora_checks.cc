#include "recipes/lora_checks.h"

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "models/lora/adapter.h"
#include "models/lora/lora_targets.h"
#include "recipes/registry.h"
#include "recipes/run/student_model.h"

namespace retort::recipes {
namespace {

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return "[" + text + "]";
}

std::string modules_text(const models::LoraConfig& config) {
  return config.target_pattern.empty() ? list_text(config.target_modules)
                                       : "'" + config.target_pattern + "'";
}

models::LoraConfig all_linear() { return {.target_modules = {std::string(models::kAllLinear)}}; }

// A generator adds what it is sent to its own model, which must be what the adapter is trained on.
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

// What is trained whole is there, and may be.
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

bool pushes_adapter(const Recipe& recipe) {
  const auto& lora = recipe.student().lora;
  return lora && lora->push == LoraPush::kAdapter;
}

bool keeps_first_adapter(const Recipe& recipe) {
  const auto& lora = recipe.student().lora;
  return lora && lora->adapter && recipe_type(recipe).compares_with_student(recipe);
}

std::string base_weights(const Recipe& recipe, const RoleOptions& role) {
  if (!pushes_adapter(recipe)) return "";
  return models::weights_fingerprint(role.model,
                                     models::parse_dtype(std::string(enum_name(role.dtype))));
}

std::string lora_difference(const models::ModelConfig& model, const models::LoraConfig& there,
                            const models::LoraConfig& wanted) {
  std::ostringstream text;
  text << std::boolalpha;
  const auto compare = [&](const char* key, const auto& found, const auto& recipe) {
    if (found == recipe) return;
    text << (text.str().empty() ? "" : "; ") << key << ": " << found << " there, " << recipe
         << " in the recipe";
  };
  compare("r", there.r, wanted.r);
  compare("lora_alpha", there.lora_alpha, wanted.lora_alpha);
  compare("use_rslora", there.use_rslora, wanted.use_rslora);
  // The same layers may be named in other words.
  if (models::adapted_modules(model, there) != models::adapted_modules(model, wanted))
    compare("target_modules", modules_text(there), modules_text(wanted));
  if (models::saved_parameters(model, there) != models::saved_parameters(model, wanted))
    compare("modules_to_save", list_text(there.modules_to_save), list_text(wanted.modules_to_save));
  return text.str();
}

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
