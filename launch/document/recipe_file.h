// A recipe as a YAML file: read with overrides, resolved and checked.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recipes/document/recipe.h"

namespace retort::launch {

struct LoadOptions {
  bool cuda = false;         // the CUDA module is there, or nothing is to be computed
  bool check_files = true;   // models and data must exist
  bool check_inputs = true;  // and are opened, as RecipeType::check_inputs says
  bool is_launched = true;   // by retort launch, which knows where each process of the run is
  // Whether a null of roles.*.env must have a value here: not for who starts no process of the run.
  // Those are then RoleOptions::env_elsewhere, and no file of values is opened.
  bool env_values = true;
};

// Reads, overrides ("key.path=value", in order), resolves and checks a recipe; no process, no
// device, nothing written. kInvalidArgument "file:line: ..." for anything wrong in it, kUnavailable
// for a device that this build or machine lacks. `warnings` gets what is allowed but probably not
// meant, each with its place. The recipes that a launcher has written have the values of
// roles.*.env from the files beside them (role_values.h).
recipes::Recipe load_recipe(const std::filesystem::path& path,
                            std::span<const std::string> overrides, const LoadOptions& options = {},
                            std::vector<std::string>* warnings = nullptr);

// The same of a text that is no file; `name` stands in messages.
recipes::Recipe parse_recipe(std::string_view text, const std::string& name,
                             const LoadOptions& options = {});

}  // namespace retort::launch
