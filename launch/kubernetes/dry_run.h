// retort launch RECIPE --dry-run.
#pragma once

#include <string>

#include "recipes/recipe.h"

namespace retort::launch {

struct DryRun {
  std::string recipe_file;  // as it was typed
  bool is_asked = false;    // by --dry-run
  bool resume = false, overwrite = false;
};

// Prints the run's manifests. kInvalidArgument, with what to do instead, without the flag and for
// a recipe whose processes Kubernetes does not start.
int run_dry(const DryRun& how, const recipes::Recipe& recipe);

}  // namespace retort::launch
