#include "recipes/roles/input_paths.h"

#include <algorithm>
#include <filesystem>

#include "models/text/named_templates.h"
#include "recipes/data/source_files.h"
#include "recipes/roles/external_roles.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

// Shows a folder as it is written, and the files that a pattern matches; a pattern that matches
// nothing here is shown itself.
std::vector<std::string> shown_paths(const std::string& path) {
  if (std::filesystem::exists(path)) return {path};
  std::vector<std::string> files = data::source_files(path);
  return files.empty() ? std::vector<std::string>{path} : files;
}

}  // namespace

std::vector<InputPath> input_paths(const Recipe& recipe) {
  std::vector<InputPath> paths;
  const auto add = [&paths](const std::string& key, const std::string& path,
                            const std::string& role = Recipe::kDrivingRole) {
    if (!path.empty()) paths.push_back({.key = key, .path = path, .role = role});
  };

  for (const auto& [name, role] : recipe.roles) {
    if (!is_asked_in_words(recipe, name)) add("roles." + name + ".model", role.model, name);
    if (role.lora) add("roles." + name + ".lora.adapter", role.lora->adapter.value_or(""), name);
    if (role.environment) {
      add("roles." + name + ".environment.api_key_file", role.environment->api_key_file, name);
      add("roles." + name + ".environment.ca_file", role.environment->ca_file, name);
    }
    if (!role.external) continue;
    add("roles." + name + ".external.api_key_file", role.external->api_key_file, name);
    add("roles." + name + ".external.ca_file", role.external->ca_file, name);
  }
  for (size_t i = 0; i < recipe.rewards.size(); ++i)
    add("rewards[" + std::to_string(i) + "].template",
        recipe.rewards[i].template_file.value_or(""));
  if (const auto& chat = recipe.data.chat_template) {
    // A template of ours has a name, not a path.
    const std::vector<std::string> names = models::template_names();
    if (std::find(names.begin(), names.end(), *chat) == names.end())
      add("data.chat_template", *chat);
  }
  for (const auto& source : recipe.data.train)
    for (const std::string& path : shown_paths(source.path))
      add("data.train", path);
  for (const auto& source : recipe.data.eval)
    for (const std::string& path : shown_paths(source.path))
      add("data.eval", path);
  for (const InputPath& input : recipe_type(recipe).inputs(recipe))
    add(input.key, input.path);
  return paths;
}

}  // namespace retort::recipes
