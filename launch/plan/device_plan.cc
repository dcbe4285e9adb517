#include "launch/plan/device_plan.h"

#include <algorithm>

#include "launch/placement/placement.h"

namespace retort::launch {
namespace {

// A number of devices that is enough for all ranks, whatever devices are named.
int64_t enough_devices(const std::vector<parallel::DeviceUser>& users) {
  int64_t ranks = 0, named = 0;
  for (const parallel::DeviceUser& user : users) {
    ranks += user.ranks;
    for (const int64_t index : user.devices)
      named = std::max(named, index + 1);
  }
  return ranks + named;
}

}  // namespace

std::vector<DevicePlan> plan_devices(const recipes::Recipe& recipe, const std::string& role) {
  const recipes::RoleOptions& options = recipe.roles.at(role);
  std::vector<DevicePlan> plans;
  if (options.world.device != parallel::Device::kCuda) return plans;
  for (const auto& [host, ranks] : known_hosts(recipe)) {
    if (!ranks.contains(role)) continue;
    const auto users = recipes::device_users(recipe, role, ranks);
    plans.push_back({.host = host,
                     .devices = parallel::taken_devices(users, role, enough_devices(users)),
                     .own = recipes::sees_own_devices(options)});
  }
  return plans;
}

}  // namespace retort::launch
