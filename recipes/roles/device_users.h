// Which roles of a recipe share out the devices of a host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel/role_devices.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// How many ranks of each role are on one host; empty: nobody has said.
using RanksOnHost = std::map<std::string, int64_t>;

// Whether the role's processes see devices of their own: its `env` has CUDA_VISIBLE_DEVICES.
bool sees_own_devices(const RoleOptions& role);

// Those that share out the devices which the ranks of `role` see on their host: the student first,
// then the others as they are written. The role alone where it sees devices of its own, and where
// it is not known who else is there.
std::vector<parallel::DeviceUser> device_users(const Recipe& recipe, const std::string& role,
                                               const RanksOnHost& ranks);

}  // namespace retort::recipes
