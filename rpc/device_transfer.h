// The part of the CUDA module that the RPC layer uses: tensors travel from device to device where
// the machine has a way (CUDA IPC inside a host), through host memory elsewhere. The program itself
// links no CUDA. And what whoever sends and receives such tensors needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace retort::rpc {

namespace detail {
class DeviceTransfer;  // rpc/detail/device_transfer.h
}

// Opens libretort_cuda.so for Agent::Options::devices: `path`, or by default RETORT_CUDA_MODULE, or
// the file in the program's folder. Call it before the first use of LibTorch in the process.
// kUnavailable: no such file, or a library that it needs is missing.
std::shared_ptr<detail::DeviceTransfer> load_device_transfer(const std::string& path = "");

// A channel of TensorPipe's for memory of devices, and why it does not work on this machine; empty:
// it does, as far as can be told without the other process (whose devices may be out of reach).
struct DeviceChannelState {
  std::string name, how, problem;  // "cuda_ipc", "from device to device"
};
// Best first: two processes take the first that works in both. Tries them, for `retort doctor`.
std::vector<DeviceChannelState> device_channels(detail::DeviceTransfer& devices);

// Whoever gives a received tensor to the current stream of this thread says so first: its memory is
// then used for nothing else before what that stream has queued by the time of its release. Nothing
// for tensors on the CPU, or undefined.
void use_on_current_stream(const at::Tensor& tensor);

// Makes `device` the one of the calling thread, which is about to use it: a thread begins with
// device 0, and calls of the driver that name no device, or go back to the thread's own, would make
// a context there. Nothing for the CPU. The process has used the device before.
void use_device_in_thread(const at::Device& device);

// What memory on the host must be, to receive copies of tensors of `device`: pinned, unless that is
// the CPU.
at::TensorOptions staging_options(at::Device device);
// The tensor itself if it lies in host memory, else a copy there; dense, complete on return.
at::Tensor host_copy(const at::Tensor& tensor);

}  // namespace retort::rpc
