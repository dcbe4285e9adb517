// What ranks of several roles need together on one device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/plan/role_plan.h"

namespace retort::launch {

struct DeviceLoad {
  std::string host;  // as DevicePlan::host
  // Nullopt: whichever, if the host has no other. Only where each role has one rank there, as the
  // ranks of one role need a device each.
  std::optional<int64_t> device;
  std::vector<std::string> roles;  // a role for each of its ranks
  int64_t bytes = 0;               // of all of them: their tensors, and what is beside these
};

// The devices that `devices` of several roles name, by host and index; then each host as if it had
// one device. Roles with CUDA_VISIBLE_DEVICES of their own count in the latter alone, because
// nobody knows which theirs are.
std::vector<DeviceLoad> shared_devices(const std::vector<RolePlan>& roles);

}  // namespace retort::launch
