// The questions of rules to the program that starts a run: it alone knows where its processes will
// be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"
#include "recipes/roles/device_users.h"

namespace retort::recipes {

// Implemented by what loads recipes, launch/document/recipe_file.cc. It starts nothing and looks at
// no host. Threads: any.
class Launcher {
 public:
  virtual ~Launcher() = default;

  // True if the processes of a run get this environment variable from the launcher itself.
  virtual bool sets_variable(const std::string& name) const = 0;
  // launch.backend: ssh: how many processes are on each of launch.hosts. kInvalidArgument where
  // they do not fit.
  virtual std::vector<int64_t> processes_on_hosts(const Recipe& recipe) const = 0;
  // The ranks on each host that `retort launch` starts processes on; none where somebody else
  // places them.
  virtual std::vector<RanksOnHost> ranks_on_hosts(const Recipe& recipe) const = 0;
  // launch.backend: kubernetes: refuses what contradicts what a run needs of its pods.
  virtual void check_pods(const Recipe& recipe, const RecipePlaces& places) const = 0;
};

}  // namespace retort::recipes
