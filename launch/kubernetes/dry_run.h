// retort launch RECIPE --dry-run.
#pragma once

#include "recipes/recipe.h"

namespace retort::launch {

struct LaunchCommand;

// Prints the run's manifests. kInvalidArgument, with what to do instead, without the flag and for
// a recipe whose processes Kubernetes does not start.
int run_dry(const LaunchCommand& command, const recipes::Recipe& recipe);

}  // namespace retort::launch
