#include "recipes/roles/device_users.h"

namespace retort::recipes {

bool sees_own_devices(const RoleOptions& role) { return role.env.contains("CUDA_VISIBLE_DEVICES"); }

std::vector<parallel::DeviceUser> device_users(const Recipe& recipe, const std::string& role,
                                               const RanksOnHost& ranks) {
  const auto user = [&](const std::string& name) {
    const auto found = ranks.find(name);
    return parallel::DeviceUser{.role = name,
                                .ranks = found == ranks.end() ? 0 : found->second,
                                .devices = recipe.roles.at(name).devices};
  };
  // A role with CUDA_VISIBLE_DEVICES of its own numbers its devices by itself: they cannot be
  // compared with those of the others.
  if (ranks.empty() || sees_own_devices(recipe.roles.at(role))) return {user(role)};

  std::vector<parallel::DeviceUser> users;
  const auto add = [&](const std::string& name, const RoleOptions& options) {
    const bool is_there = ranks.contains(name) && ranks.at(name) > 0;
    if (is_there && options.world.device == parallel::Device::kCuda && !sees_own_devices(options))
      users.push_back(user(name));
  };
  add(Recipe::kDrivingRole, recipe.student());
  for (const auto& [name, options] : recipe.roles)
    if (name != Recipe::kDrivingRole) add(name, options);
  return users;
}

}  // namespace retort::recipes
