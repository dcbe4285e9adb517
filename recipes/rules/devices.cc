// Rules of roles.<name>.devices.
#include "recipes/rules/block_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "recipes/roles/device_users.h"

namespace retort::recipes {
namespace {

// Returns why the role takes no device by its index, or "" if it does.
std::string takes_no_device(const RoleOptions& role, Backend backend) {
  if (role.external) return "has no effect: the engine has devices of its own; remove it";
  if (role.world.device != parallel::Device::kCuda)
    return "has no effect with world.device: cpu; remove it, or use device: cuda";
  if (backend == Backend::kKubernetes || backend == Backend::kSlurm)
    return "is not for launch.backend: " + std::string(enum_name(backend)) +
           ", which gives the ranks of each role devices of their own; remove it";
  return "";
}

void check_device_list(const std::string& name, const RoleOptions& role,
                       const RecipePlaces& places) {
  for (size_t i = 0; i < role.devices.size(); ++i) {
    const KeyPath place{"roles", name, "devices", std::to_string(i)};
    const int64_t index = role.devices[i];
    if (index < 0)
      places.refuse(place, std::to_string(index) + " is no device; they are counted from 0");
    if (std::ranges::count(role.devices, index) > 1)
      places.refuse(place, "device " + std::to_string(index) + " is there twice");
  }
}

}  // namespace

void check_devices(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                   bool is_launched) {
  for (const auto& [name, role] : recipe.roles) {
    if (role.devices.empty()) continue;
    const KeyPath place{"roles", name, "devices"};
    if (const std::string why = takes_no_device(role, recipe.launch.backend); !why.empty())
      places.refuse(place, why);
    check_device_list(name, role, places);
    if (!is_launched) continue;

    const auto named = std::ssize(role.devices);
    for (const RanksOnHost& ranks : launcher.ranks_on_hosts(recipe)) {
      const auto here = ranks.find(name);
      if (here == ranks.end() || here->second <= named) continue;
      places.refuse(place, "names " + std::to_string(named) + " devices, but " +
                               std::to_string(here->second) +
                               " ranks of the role are on the host; name one for each");
    }
  }
}

}  // namespace retort::recipes
