// Connects a group on its devices, within a limit. A rank that ends between the rendezvous and the
// connection leaves the others in a call of NCCL's that has no limit of its own, and nothing to
// abort: what could be aborted comes out of that call.
#pragma once

#include <chrono>
#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "parallel/detail/device_backends.h"
#include "parallel/device_module.h"

namespace retort::parallel::detail {

// DeviceBackends::connect() on a thread of its own, which uses the process's device, while this one
// waits. Collective over the members.
//
// Errors: those of connect(); kTimeout when it has not come back within `limit`. The thread is left
//   behind then, with all that it uses: whoever hears of it has to end the process.
c10::intrusive_ptr<c10d::Backend> connect_in_time(std::shared_ptr<DeviceModule> module,
                                                  DeviceGroupSpec group,
                                                  c10::intrusive_ptr<c10d::Store> store,
                                                  std::chrono::milliseconds limit);

}  // namespace retort::parallel::detail
