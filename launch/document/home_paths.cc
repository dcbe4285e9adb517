#include "launch/document/home_paths.h"

#include <optional>
#include <string>

#include "base/near_file.h"

namespace retort::launch {
namespace {

void expand(std::string& path) { path = home_expanded(path); }

void expand(std::optional<std::string>& path) {
  if (path) path = home_expanded(*path);
}

}  // namespace

void expand_home(recipes::Recipe& recipe) {
  if (recipe.launch.backend == recipes::Backend::kKubernetes) return;
  expand(recipe.output_dir);
  expand(recipe.launch.secret_file);
  expand(recipe.launch.ssh.identity_file);
  for (auto& [name, role] : recipe.roles) {
    expand(role.model);
    if (role.lora) expand(role.lora->adapter);
    if (!role.external) continue;
    expand(role.external->weights.folder);
    expand(role.external->tokenizer);
    expand(role.external->api_key_file);
    expand(role.external->ca_file);
  }

  for (auto* sources : {&recipe.data.train, &recipe.data.eval})
    for (data::Source& source : *sources)
      expand(source.path);
  expand(recipe.data.tokenized_cache);
  expand(recipe.data.chat_template);
  if (recipe.dpo) expand(recipe.dpo->reference_cache);
  if (recipe.kto) expand(recipe.kto->reference_cache);
  for (rewards::RewardOptions& reward : recipe.rewards)
    expand(reward.template_file);
  if (!recipe.distill) return;
  for (auto& teacher : recipe.distill->teachers)
    expand(teacher.cache);
}

}  // namespace retort::launch
