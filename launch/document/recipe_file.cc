#include "launch/document/recipe_file.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/options.h"
#include "base/piped_file.h"
#include "base/similar_file.h"
#include "launch/document/key_paths.h"
#include "launch/document/yaml_locations.h"
#include "launch/kubernetes/check.h"
#include "launch/placement/placement.h"
#include "launch/process/child_process.h"
#include "launch/yaml/reader.h"
#include "launch/yaml/role_values.h"
#include "launch/yaml/tree.h"
#include "recipes/document/reserved_keys.h"
#include "recipes/rules/launcher.h"
#include "recipes/rules/rules.h"

namespace retort::launch {
namespace {

YamlNode read_tree(std::string_view text, const std::string& name,
                   std::span<const std::string> overrides) {
  YamlNode root = parse_yaml(text, name);
  for (const auto& assignment : overrides)
    apply_override(root, assignment);
  if (root.kind != YamlNode::Kind::kMap)
    throw Error(ErrorCode::kInvalidArgument, root.place.prefix() +
                                                 "expected a recipe (a block of keys), got " +
                                                 std::string(yaml_kind_name(root.kind)));
  return root;
}

// Says what is known of a name that the recipe language does not have here.
std::string unknown_name(std::string_view name) {
  std::string text = recipes::reserved_key(name);
  if (!text.empty() || name.find('=') != std::string_view::npos) return text;

  const std::string_view key = name.substr(name.rfind('.') + 1);
  const std::string places = places_of_key(key);
  if (!places.empty())
    text = "unknown key here; the key is " + places + ": is the line indented as that block is?";
  return text;
}

// Answers what the rules of the language ask of this launcher.
class RunLauncher : public recipes::Launcher {
 public:
  bool sets_variable(const std::string& name) const override { return is_launchers_variable(name); }

  std::vector<int64_t> processes_on_hosts(const recipes::Recipe& recipe) const override {
    return place_processes(recipe).processes;
  }

  std::vector<recipes::RanksOnHost> ranks_on_hosts(const recipes::Recipe& recipe) const override {
    std::vector<recipes::RanksOnHost> ranks;
    for (KnownHost& host : known_hosts(recipe))
      ranks.push_back(std::move(host.ranks));
    return ranks;
  }

  void check_pods(const recipes::Recipe& recipe,
                  const recipes::RecipePlaces& places) const override {
    launch::check_pods(recipe, places);
  }
};

void expand(std::string& path) { path = home_expanded(path); }

void expand(std::optional<std::string>& path) {
  if (path) path = home_expanded(*path);
}

// "~" and "~/..." become the home folder of this environment (base/similar_file.h) in what the
// recipe reads and writes: models, adapters, data, tokenizers, certificates, keys, templates,
// caches and output_dir. Not with backend: kubernetes, whose pods have another home.
void expand_home(recipes::Recipe& recipe) {
  if (recipe.launch.backend == recipes::Backend::kKubernetes) return;
  expand(recipe.output_dir);
  expand(recipe.launch.secret_file);
  expand(recipe.launch.ssh.identity_file);
  for (auto& [name, role] : recipe.roles) {
    expand(role.model);
    if (role.lora) expand(role.lora->adapter);
    if (role.environment) {
      expand(role.environment->api_key_file);
      expand(role.environment->ca_file);
    }
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

recipes::Recipe checked_recipe(YamlNode root, const RoleValues& known, const LoadOptions& options,
                               std::vector<std::string>* warnings) {
  const RoleValues elsewhere = fill_role_values(root, known, options.env_values);
  const YamlPlaces places(root);
  recipes::Recipe recipe;
  const YamlReader::LaterNames later = unknown_name;
  YamlReader(root, "", &later).read(recipe);
  for (const auto& [role, variables] : elsewhere)
    for (const auto& [variable, value] : variables)
      recipe.roles.at(role).env_elsewhere.insert(variable);
  if (!places.written({"recipe"}))
    places.refuse({}, "`recipe` is missing; expected recipe: " +
                          choices_text(recipes::RecipeName::choices()));

  // Paths are expanded and keys resolved before the rules look, so that they see what the run will
  // have.
  expand_home(recipe);
  recipes::resolve_recipe(recipe, places);
  recipes::check_rules(recipe, places, RunLauncher(),
                       {.has_cuda = options.cuda,
                        .check_files = options.check_files,
                        .check_inputs = options.check_inputs,
                        .is_launched = options.is_launched});
  if (warnings) *warnings = places.warnings();
  return recipe;
}

}  // namespace

recipes::Recipe load_recipe(const std::filesystem::path& path,
                            std::span<const std::string> overrides, const LoadOptions& options,
                            std::vector<std::string>* warnings) {
  if (std::filesystem::is_directory(path))
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + " is a folder; expected a recipe (YAML file)");
  RoleValues values;
  if (options.env_values) values = read_role_values(path).value_or(RoleValues{});
  return checked_recipe(read_tree(read_file_or_pipe(path), path.string(), overrides), values,
                        options, warnings);
}

recipes::Recipe parse_recipe(std::string_view text, const std::string& name,
                             const LoadOptions& options) {
  return checked_recipe(read_tree(text, name, {}), {}, options, nullptr);
}

}  // namespace retort::launch
