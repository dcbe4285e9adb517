#include "launch/yaml/device_check.h"

#include <algorithm>
#include <string>

#include "launch/backends/placement.h"

namespace retort::launch {
namespace {

using recipes::KeyPath;
using recipes::Recipe;
using recipes::RoleOptions;

// Why the role takes no device by its index; "" if it does.
std::string takes_none(const Recipe& recipe, const RoleOptions& role) {
  if (role.external) return "has no effect: the engine has devices of its own; remove it";
  if (role.world.device != parallel::Device::kCuda)
    return "has no effect with world.device: cpu; remove it, or use device: cuda";
  const auto backend = recipe.launch.backend;
  if (backend == recipes::Backend::kKubernetes || backend == recipes::Backend::kSlurm)
    return "is not for launch.backend: " + std::string(enum_name(backend)) +
           ", which gives the ranks of each role devices of their own; remove it";
  return "";
}

void check_list(const std::string& name, const RoleOptions& role,
                const recipes::RecipePlaces& places) {
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

void check_devices(const Recipe& recipe, const recipes::RecipePlaces& places, bool is_launched) {
  for (const auto& [name, role] : recipe.roles) {
    if (role.devices.empty()) continue;
    const KeyPath place{"roles", name, "devices"};
    if (const std::string why = takes_none(recipe, role); !why.empty()) places.refuse(place, why);
    check_list(name, role, places);
    if (!is_launched) continue;

    const auto named = std::ssize(role.devices);
    for (const auto& [host, ranks] : known_hosts(recipe)) {
      const auto here = ranks.find(name);
      if (here == ranks.end() || here->second <= named) continue;
      places.refuse(place, "names " + std::to_string(named) + " devices, but " +
                               std::to_string(here->second) +
                               " ranks of the role are on the host; name one for each");
    }
  }
}

}  // namespace retort::launch
