// The paths that a run reads and writes, and on which hosts they must be the same.
#pragma once

#include <string>
#include <vector>

#include "recipes/recipe.h"

namespace retort::launch {

struct PathPlan {
  std::string key, path;
  std::string role;                // whose processes read it; "": all of them, and they write there
  std::vector<std::string> hosts;  // of launch.hosts with a process of it; empty: nobody knows yet
};

// The run's folder, then what is read.
std::vector<PathPlan> plan_paths(const recipes::Recipe& recipe);

}  // namespace retort::launch
