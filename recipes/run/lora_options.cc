#include "recipes/run/lora_options.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace retort::recipes {

void LoraOptions::validate() const {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, what);
  };
  if (r < 1) refuse("r must be at least 1, got " + std::to_string(r));
  if (!std::isfinite(lora_alpha) || lora_alpha <= 0) refuse("lora_alpha must be above 0");
  if (lora_dropout != 0) refuse("lora_dropout other than 0 is not in this version; remove the key");
  if (!modules_to_save.empty())
    refuse(
        "modules_to_save is not in this version: embeddings and heads stay as they are; remove the "
        "key");

  if (target_modules.empty())
    refuse("target_modules is empty; write all-linear, or at least one layer");
  if (target_modules.size() > 1 && std::ranges::count(target_modules, LoraTarget::kAllLinear) > 0)
    refuse("target_modules: all-linear names all of them and stands alone");
  for (const LoraTarget target : target_modules)
    if (std::ranges::count(target_modules, target) > 1)
      refuse("target_modules names " + std::string(enum_name(target)) + " twice");
}

models::LoraConfig LoraOptions::config() const {
  const bool all = target_modules == std::vector{LoraTarget::kAllLinear};
  models::LoraConfig config{
      .r = r, .lora_alpha = lora_alpha, .target_modules = {}, .use_rslora = use_rslora};
  for (const std::string_view module : models::linear_modules()) {
    const bool named = std::ranges::any_of(
        target_modules, [&](const LoraTarget target) { return enum_name(target) == module; });
    if (all || named) config.target_modules.emplace_back(module);
  }
  return config;
}

}  // namespace retort::recipes
