// How tensors of the stand-in device (tests/losses/stand_in_device.h) travel over RPC: a channel of
// TensorPipe of its own, which copies what it sends out of the device and what it receives into it.
// All else is the way of CUDA's tensors: maps, descriptors, memory that the receiver allocates,
// when a message is handed out. A host pointer to the device's memory kills the process, so
// whatever is on that way leaves it alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rpc/detail/device_transfer.h"

namespace retort::rpc::testing {

// What it was asked to do.
struct StandInTraffic {
  int64_t announced = 0;  // tensors given away: begin_send
  int64_t sent = 0;       // by the channel
  int64_t received = 0;
};

// For Agent::Options::devices of one agent. `ids`: of the devices that it sees, by index; whatever
// they are, tensors lie on the one that the process has.
std::unique_ptr<detail::DeviceTransfer> stand_in_transfer(
    std::vector<std::string> ids = {"STAND-IN-0"});
StandInTraffic stand_in_traffic();  // of all in this process

}  // namespace retort::rpc::testing
