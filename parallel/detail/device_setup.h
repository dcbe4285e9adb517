// How the ranks of a role share out the devices of their hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "parallel/device_module.h"
#include "parallel/world.h"

namespace retort::parallel::detail {

// A rank of a role that needs a device.
struct DeviceTaker {
  std::string role;
  std::vector<DeviceUser> users;  // of its host's devices, the role among them
  int64_t rank = 0, size = 1;     // among the ranks of the role
  bool share = false;             // several of them may have one device
};

// Agrees with the other ranks of the role on the devices and makes this rank's device the current
// one. Warns of other roles that have it too. Collective over the ranks; `store` is null if there
// is only one. Errors of choose_device(); kTimeout if a rank does not say on which host it is.
DeviceChoice take_device(DeviceModule& module, StoreClient* store, const DeviceTaker& taker,
                         Deadline deadline);

}  // namespace retort::parallel::detail
