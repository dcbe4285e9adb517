// Connects a group on its devices, within a limit. A rank that ends between the rendezvous and the
// connection leaves the others in a call of NCCL's that has no limit of its own, and nothing to
// abort: what could be aborted comes out of that call.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "parallel/detail/device_backends.h"
#include "parallel/device_module.h"

namespace retort::parallel::detail {

// As the watch over collectives ends a process (device_watch.h).
struct LeavingOptions {
  std::chrono::milliseconds exit_limit{30'000};
  // Ends the process with code 1, without destructors or handlers. Tests replace it.
  std::function<void()> exit_process;
};

// DeviceBackends::connect() on a thread of its own, which uses the process's device, while this one
// waits. Collective over the members.
//
// Errors: those of connect(); kTimeout when it has not come back within `limit`. The thread is left
//   behind then, with all that it uses: whoever hears of it has to end the process. What ends it in
//   order may wait for that thread, so `leaving` ends it where it is still there after its limit.
c10::intrusive_ptr<c10d::Backend> connect_in_time(std::shared_ptr<DeviceModule> module,
                                                  DeviceGroupSpec group,
                                                  c10::intrusive_ptr<c10d::Store> store,
                                                  std::chrono::milliseconds limit,
                                                  LeavingOptions leaving = {});

}  // namespace retort::parallel::detail
