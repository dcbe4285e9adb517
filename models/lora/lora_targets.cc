#include "models/lora/lora_targets.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "models/lora/lora_pattern.h"
#include "models/lora/lora_specs.h"
#include "models/parameters/parameter_specs.h"

namespace retort::models {
namespace {

// Follows PEFT's rule for a name in a list: it is the whole name of a layer, or its end from a dot
// on.
bool names_module(std::string_view target, std::string_view module) {
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

// Lists the linear layers of the model, by the names of its files.
std::vector<AdaptedModule> all_modules(const ModelConfig& config) {
  std::vector<AdaptedModule> modules;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    std::string name = lora_module(config, spec);
    if (name.empty()) continue;
    if (modules.empty() || modules.back().name != name)
      modules.push_back({.name = std::move(name), .layer = layer_of(spec.name), .parts = {}});
    modules.back().parts.push_back(module_of(spec.name));
  }
  return modules;
}

// Returns the name of the module that has a parameter.
std::string owner_of(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

[[noreturn]] void refuse_saved(const std::string& target, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "modules_to_save: '" + target + "' " + why)
      .with("key", "modules_to_save");
}

std::string last_word(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Lists what stands in a layer of the model: "o_proj, qkv_proj".
std::string module_words(const std::vector<AdaptedModule>& modules) {
  std::string text;
  for (const AdaptedModule& module : modules)
    if (module.layer == modules.front().layer)
      text += (text.empty() ? "" : ", ") + last_word(module.name);
  return text;
}

}  // namespace

std::vector<AdaptedModule> adapted_modules(const ModelConfig& config, const LoraConfig& lora) {
  const std::vector<AdaptedModule> all = all_modules(config);
  if (lora.all_linear()) return all;
  std::optional<LoraPattern> pattern;
  if (!lora.target_pattern.empty()) pattern.emplace(lora.target_pattern);
  const auto adapts = [&](const AdaptedModule& module) {
    // A pattern must match a whole name, while a word of a list may be the end of one (PEFT).
    if (pattern) return pattern->matches(module.name);
    return std::ranges::any_of(lora.target_modules, [&](const std::string& target) {
      return names_module(target, module.name);
    });
  };

  std::vector<AdaptedModule> adapted;
  for (const AdaptedModule& module : all)
    if (adapts(module)) adapted.push_back(module);
  if (adapted.empty())
    throw Error(
        ErrorCode::kInvalidArgument,
        "target_modules" + (pattern ? " '" + lora.target_pattern + "' matches" : " names") +
            " no linear layer of this model; each of its layers has " + module_words(all) +
            (pattern ? ", and a pattern matches whole names such as '" + all.front().name + "'"
                     : ""))
        .with("key", "target_modules");
  return adapted;
}

std::optional<std::string> unmatched_target(const ModelConfig& config, const LoraConfig& lora) {
  if (lora.all_linear() || !lora.target_pattern.empty()) return std::nullopt;
  const std::vector<AdaptedModule> all = all_modules(config);
  for (const std::string& target : lora.target_modules) {
    const bool named = std::ranges::any_of(
        all, [&](const AdaptedModule& module) { return names_module(target, module.name); });
    if (!named) return target;
  }
  return std::nullopt;
}

std::vector<std::string> saved_parameters(const ModelConfig& config, const LoraConfig& lora) {
  std::vector<std::string> saved;
  if (lora.modules_to_save.empty()) return saved;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    const std::string owner = owner_of(spec.name);
    // PEFT asks for no dot before a name here: "norm" is every norm.
    const auto target = std::ranges::find_if(
        lora.modules_to_save, [&](const std::string& name) { return owner.ends_with(name); });
    if (target == lora.modules_to_save.end()) continue;
    if (layer_of(spec.name) >= 0 && spec.kind != ParameterKind::kNorm)
      refuse_saved(*target, "is " + owner +
                                ", a linear layer of a decoder layer; expected embed_tokens, "
                                "lm_head, score or norms (adapt linear layers by target_modules)");
    if (layer_of(spec.name) < 0 && spec.kind == ParameterKind::kMatrix &&
        config.tie_word_embeddings && !config.classifies())
      refuse_saved(*target,
                   "is the embedding, which is the head too in this model "
                   "(tie_word_embeddings): trained alone it would part from it; train "
                   "the whole model, or leave it out");
    saved.push_back(spec.name);
  }
  return saved;
}

std::optional<std::string> unmatched_module(const ModelConfig& config, const LoraConfig& lora) {
  for (const std::string& target : lora.modules_to_save) {
    const bool named = std::ranges::any_of(parameter_specs(config), [&](const ParameterSpec& spec) {
      return owner_of(spec.name).ends_with(target);
    });
    if (!named) return target;
  }
  return std::nullopt;
}

LoraConfig with_named_targets(const ModelConfig& config, LoraConfig lora) {
  if (!lora.all_linear()) return lora;
  lora.target_modules.clear();
  for (const AdaptedModule& module : all_modules(config)) {
    std::string word = last_word(module.name);
    if (std::ranges::find(lora.target_modules, word) == lora.target_modules.end())
      lora.target_modules.push_back(std::move(word));
  }
  return lora;
}

bool same_adapters(const ModelConfig& config, const LoraConfig& a, const LoraConfig& b) {
  return a.r == b.r && a.scaling() == b.scaling() &&
         adapted_modules(config, a) == adapted_modules(config, b) &&
         saved_parameters(config, a) == saved_parameters(config, b);
}

}  // namespace retort::models
