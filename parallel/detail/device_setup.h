// How the ranks of a role share out the devices of their hosts.
#pragma once

#include "base/deadline.h"
#include "parallel/device_module.h"
#include "parallel/world.h"

namespace retort::parallel::detail {

// Collective over the ranks of the role (`store` is null if there is one): agrees on the devices
// and makes this rank's the current one. kUnavailable as choose_device(); kTimeout if a rank does
// not say where it is.
DeviceChoice take_device(DeviceModule& module, StoreClient* store, int64_t rank, int64_t size,
                         bool share, Deadline deadline);

}  // namespace retort::parallel::detail
