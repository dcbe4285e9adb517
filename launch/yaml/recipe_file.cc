#include "launch/yaml/recipe_file.h"

#include "base/file.h"
#include "launch/yaml/places.h"
#include "launch/yaml/reader.h"
#include "launch/yaml/recipe_check.h"
#include "launch/yaml/tree.h"
#include "launch/yaml/writer.h"
#include "recipes/external_roles.h"
#include "recipes/registry.h"
#include "recipes/reserved_keys.h"

namespace retort::launch {
namespace {

YamlNode read_tree(const std::filesystem::path& path, std::span<const std::string> overrides) {
  if (std::filesystem::is_directory(path))
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + " is a folder; expected a recipe (YAML file)");
  YamlNode root = parse_yaml(read_file(path), path.string());
  for (const auto& assignment : overrides)
    apply_override(root, assignment);
  if (root.kind != YamlNode::Kind::kMap)
    throw Error(ErrorCode::kInvalidArgument, root.place.prefix() +
                                                 "expected a recipe (a block of keys), got " +
                                                 std::string(yaml_kind_name(root.kind)));
  return root;
}

}  // namespace

recipes::Recipe load_recipe(const std::filesystem::path& path,
                            std::span<const std::string> overrides, const LoadOptions& options,
                            std::vector<std::string>* warnings) {
  const YamlNode root = read_tree(path, overrides);
  const YamlPlaces places(root);
  recipes::Recipe recipe;
  const YamlReader::LaterNames later = recipes::reserved_key;
  YamlReader(root, "", &later).read(recipe);
  if (!places.written({"recipe"}))
    places.refuse({}, "`recipe` is missing; expected recipe: " +
                          choices_text(recipes::RecipeName::choices()));

  recipe.train.resolve();
  recipes::recipe_type(recipe).resolve(recipe, places);
  recipes::resolve_external_roles(recipe, places);
  recipes::resolve_sampling_correction(recipe);
  if (recipe.generation && !recipe.weight_sync) recipe.weight_sync.emplace();
  check_recipe(recipe, places, options);
  if (warnings) *warnings = places.warnings();
  return recipe;
}

std::string resolved_yaml(const recipes::Recipe& recipe) {
  YamlWriter writer;
  recipes::Recipe copy = recipe;
  copy.fields(writer);
  return writer.str();
}

}  // namespace retort::launch
