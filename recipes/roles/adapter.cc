#include "recipes/roles/adapter.h"

#include <sstream>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/lora/lora_targets.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

std::string list_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return "[" + text + "]";
}

}  // namespace

std::string modules_text(const models::LoraConfig& config) {
  return config.target_pattern.empty() ? list_text(config.target_modules)
                                       : "'" + config.target_pattern + "'";
}

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
  // The same layers may be named in other words, so the layers are compared.
  if (models::adapted_modules(model, there) != models::adapted_modules(model, wanted))
    compare("target_modules", modules_text(there), modules_text(wanted));
  if (models::saved_parameters(model, there) != models::saved_parameters(model, wanted))
    compare("modules_to_save", list_text(there.modules_to_save), list_text(wanted.modules_to_save));
  return text.str();
}

}  // namespace retort::recipes
