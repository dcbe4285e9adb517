// The part of the CUDA module that the RPC layer uses: tensors travel from device to device where
// the machine has a way (CUDA IPC inside a host), through host memory elsewhere. The program itself
// links no CUDA.
#pragma once

#include <memory>
#include <string>

namespace retort::rpc {

namespace detail {
class DeviceTransfer;  // rpc/detail/device_transfer.h
}

// Opens libretort_cuda.so for Agent::Options::devices: `path`, or by default RETORT_CUDA_MODULE, or
// the file in the program's folder. Call it before the first use of LibTorch in the process.
// kUnavailable: no such file, or a library that it needs is missing.
std::shared_ptr<detail::DeviceTransfer> load_device_transfer(const std::string& path = "");

}  // namespace retort::rpc
