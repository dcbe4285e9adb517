// Which devices the ranks of a role take, as far as the recipe says it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/document/recipe.h"

namespace retort::launch {

struct DevicePlan {
  std::string host;              // one of launch.hosts; "": where the run is launched
  std::vector<int64_t> devices;  // of the role's ranks there, in their order
  bool own = false;              // counted among those of its own CUDA_VISIBLE_DEVICES
};

// On hosts that have as many devices as they need for each rank to have one of its own. None for a
// role on the CPU, and where somebody else places the processes.
std::vector<DevicePlan> plan_devices(const recipes::Recipe& recipe, const std::string& role);

}  // namespace retort::launch
