#include "recipes/document/lora_options.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/error.h"

namespace retort::recipes {
namespace {

// True for a layer's name, maybe with what stands before it: "q_proj", "self_attn.q_proj".
bool names_linear(const std::string& target) {
  const bool plain = std::ranges::all_of(
      target, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
  return plain && models::is_linear_module(target.substr(target.rfind('.') + 1));
}

// PEFT takes a text for a regular expression of whole names. A text that is a layer's name would
// match none of these, so it counts as a list of one.
bool is_target_pattern(const TextOrList& targets) {
  if (targets.is_list) return false;
  return targets.items.front() != models::kAllLinear && !names_linear(targets.items.front());
}

void check_targets(const TextOrList& targets) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "target_modules " + what);
  };
  const std::vector<std::string>& items = targets.items;
  if (items.empty() || items.front().empty())
    refuse("is empty; write all-linear, or at least one layer");
  if (is_target_pattern(targets)) {
    models::check_target_pattern(items.front());
    return;
  }

  for (const std::string& target : items) {
    if (target == models::kAllLinear) {
      if (items.size() > 1) refuse("has all-linear, which names all of them and stands alone");
      continue;
    }
    if (!names_linear(target))
      refuse("has '" + target +
             "', which is no linear layer of a decoder's layers; expected all-linear, or names "
             "that end with one of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj "
             "(of Phi-3 qkv_proj, gate_up_proj), or in the place of the list a regex of whole "
             "names");
    if (std::ranges::count(items, target) > 1) refuse("names " + target + " twice");
  }
}

}  // namespace

void LoraOptions::validate() const {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, what);
  };
  if (r < 1) refuse("r must be at least 1, got " + std::to_string(r));
  if (!std::isfinite(lora_alpha) || lora_alpha <= 0) refuse("lora_alpha must be above 0");
  if (!(lora_dropout >= 0 && lora_dropout < 1))
    refuse("lora_dropout must be at least 0 and below 1");
  for (const std::string& module : modules_to_save) {
    if (module.empty()) refuse("modules_to_save has an empty name");
    if (std::ranges::count(modules_to_save, module) > 1)
      refuse("modules_to_save names " + module + " twice");
  }
  check_targets(target_modules);
}

models::LoraConfig LoraOptions::config() const {
  models::LoraConfig config{.r = r,
                            .lora_alpha = lora_alpha,
                            .target_modules = {},
                            .use_rslora = use_rslora,
                            .lora_dropout = lora_dropout,
                            .modules_to_save = modules_to_save};
  if (is_target_pattern(target_modules))
    config.target_pattern = target_modules.items.front();
  else
    config.target_modules = target_modules.items;
  return config;
}

}  // namespace retort::recipes
