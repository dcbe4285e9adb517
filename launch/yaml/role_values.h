// The values of roles.*.env, which may be secrets: they are no part of the resolved recipe, which
// many may read, but stand beside it in a file of the user's alone.
//
// The resolved recipe has `null` for each: the value of the reader's own environment variable of
// that name. A process of the role has it there; a launcher that goes on from the run's folder
// takes all of them from the file.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "launch/yaml/tree.h"
#include "recipes/recipe.h"

namespace retort::launch {

// A run's recipe with every key of it, in its folder.
inline constexpr const char* kResolvedRecipe = "recipe.resolved.yaml";

// In the run's folder, beside kResolvedRecipe; mode 0600. For each variable its role, its name and
// its value, each with a NUL behind it.
inline constexpr const char* kRoleValues = "roles.env";

// role -> variable -> value
using RoleValues = std::map<std::string, std::map<std::string, std::string>>;

RoleValues role_values(const recipes::Recipe& recipe);
// Writes the file; without a variable there is none. Errors of write_private_file().
void write_role_values(const std::filesystem::path& run_folder, const recipes::Recipe& recipe);
// nullopt: there is no such file. Errors of read_private_file(); kCorrupt for anything else in it.
std::optional<RoleValues> read_role_values(const std::filesystem::path& run_folder);

// Gives each null of roles.*.env in the tree of a recipe a value: that in `known`, else that of
// this process's environment, else it is empty, or with `needed` kInvalidArgument at its place.
void fill_role_values(YamlNode& recipe, const RoleValues& known, bool needed);

// "key.path=value" as it is shown: "..." stands for a value with variables of roles.*.env in it.
std::string without_role_values(const std::string& assignment);

}  // namespace retort::launch
