// TensorPipe's channels for memory of devices, as far as they work on this machine. Some of them
// throw where others say that they do not work: cuda_ipc where NVML names its devices by other ids
// than the driver does, as with MIG. That must not end a process that has another way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorpipe/channel/context.h>

#include "rpc/detail/device_transfer.h"

namespace retort::rpc::detail {

struct DeviceChannel {
  std::string name;  // "cuda_ipc"
  std::string how;   // "from device to device"
  // Whose questions about a remote device are answered with no where it would throw. Null: it does
  // not work here.
  std::shared_ptr<tensorpipe::channel::Context> context;
  std::string problem;  // why not
};

// All that `devices` knows, best first. They may have threads, which end with them.
std::vector<DeviceChannel> make_device_channels(DeviceTransfer& devices);

}  // namespace retort::rpc::detail
