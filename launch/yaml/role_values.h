// The values of roles.*.env, which may be secrets: they are no part of the resolved recipe, which
// many may read, but stand beside it in a file of the user's alone: whichever recipe a launcher has
// written has one beside it.
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
#include "recipes/document/recipe.h"

namespace retort::launch {

// A run's recipe with every key of it, in its folder.
inline constexpr const char* kResolvedRecipe = "recipe.resolved.yaml";
// What a job of --submit goes on with, there too. The folder's own recipe stays that of what ran
// last, until the job begins.
inline constexpr const char* kSubmittedRecipe = "slurm.yaml";

// Beside the one and the other; mode 0600. For each variable its role, its name and its value, each
// with a NUL behind it.
inline constexpr const char* kRoleValues = "roles.env";
inline constexpr const char* kSubmittedValues = "slurm.roles.env";

// role -> variable -> value
using RoleValues = std::map<std::string, std::map<std::string, std::string>>;

// Without those of RoleOptions::env_elsewhere.
RoleValues role_values(const recipes::Recipe& recipe);
// Writes the file beside `recipe_file`, which has one of the names above; without a variable there
// is none. Errors of write_private_file().
void write_role_values(const std::filesystem::path& recipe_file, const RoleValues& values);
// nullopt: there is no such file, or the recipe is none that a launcher wrote. Errors of
// read_own_private_file(); kCorrupt for anything else in it.
std::optional<RoleValues> read_role_values(const std::filesystem::path& recipe_file);

// Gives each null of roles.*.env in the tree of a recipe a value: that in `known`, else that of
// this process's environment, else with `needed` kInvalidArgument at its place. Without `needed`
// each gets that of the environment, or is empty; those are returned, for the processes of the role
// may have others.
RoleValues fill_role_values(YamlNode& recipe, const RoleValues& known, bool needed);

// Whether "key.path=value" has the value of a variable of roles.*.env in it, so that it is shown to
// nobody.
bool has_role_values(const std::string& assignment);

}  // namespace retort::launch
