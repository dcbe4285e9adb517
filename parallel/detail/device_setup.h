// How the ranks of a role share out the devices of their hosts.
#pragma once

#include "base/deadline.h"
#include "parallel/device_module.h"
#include "parallel/world.h"

namespace retort::parallel::detail {

// Agrees with the other ranks of the role on the devices and makes this rank's device the current
// one. Collective over the ranks; `store` is null if there is only one. kUnavailable as
// choose_device(); kTimeout if a rank does not say on which host it is.
DeviceChoice take_device(DeviceModule& module, StoreClient* store, int64_t rank, int64_t size,
                         bool share, Deadline deadline);

}  // namespace retort::parallel::detail
