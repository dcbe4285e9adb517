// The environment variables that a recipe gives to the processes of a role.
#pragma once

#include <map>
#include <string>

#include "recipes/document/recipe.h"

namespace retort::launch {

// Those of `env`, the form of log lines, and on a device the switches of the libraries that read
// them from the environment (parallel/nccl_variables.h, and cuBLAS's with `deterministic: true`),
// unless `env` sets them. One that is null in the recipe of `retort join` is this process's own:
// where that has none, the role has none. `role` is one of the recipe's.
std::map<std::string, std::string> role_variables(const recipes::Recipe& recipe,
                                                  const recipes::RoleOptions& role);

}  // namespace retort::launch
