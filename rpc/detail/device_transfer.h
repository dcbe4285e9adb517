// How tensors of one type of device travel: what libretort_cuda.so implements for CUDA (rpc/cuda),
// and the tests for a device that needs no hardware. Nothing of CUDA is named here.
//
// Order on the device. Sending: what the sender's current stream has queued before begin_send()
// happens before the bytes leave. Receiving: a tensor is handed out when its bytes are there, so
// any stream may read it at once; one that is not the device's default stream says so
// (use_on_current_stream). Neither blocks a thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <tensorpipe/channel/context.h>
#include <tensorpipe/common/buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace retort::rpc::detail {

// Any thread.
class DeviceTransfer {
 public:
  virtual ~DeviceTransfer() = default;
  // The device type of the tensors that it moves; tensors on other devices are refused.
  virtual at::DeviceType device_type() const = 0;
  // What TensorPipe's channels call that type: "cuda".
  virtual std::string wire_type() const = 0;
  virtual int64_t num_devices() const = 0;
  // Names of the devices by index, which are the same in every process that sees them: "GPU-...".
  virtual const std::vector<std::string>& device_ids() = 0;

  struct ChannelMaker {
    std::string name;  // "cuda_ipc"
    std::string how;   // for people: "from device to device"
    // Null or not viable where it does not work on this machine; it may throw then, too.
    std::function<std::shared_ptr<tensorpipe::channel::Context>()> make;
  };
  // Channels for device memory, best first. The last one works wherever there is a device.
  virtual std::vector<ChannelMaker> channels() = 0;

  // Runs on the thread that gives a tensor away, after its last change. Orders the sending behind
  // what that thread has queued, and keeps the memory until it is sent, whatever becomes of the
  // tensor.
  virtual void begin_send(const at::Tensor& tensor) = 0;
  virtual tensorpipe::Buffer send_buffer(const at::Tensor& tensor) = 0;

  // Uninitialised memory on device `index` (below num_devices()) that a message is received into.
  // Throws what LibTorch throws.
  virtual at::Tensor allocate(const std::vector<int64_t>& sizes, at::ScalarType dtype,
                              int64_t index) = 0;
  virtual tensorpipe::Buffer receive_buffer(const at::Tensor& tensor) = 0;
  // Calls `arrived` once, on a thread of the driver, when all that is queued for these received
  // tensors has happened; it must return at once and call nothing of CUDA.
  virtual void when_arrived(const std::vector<at::Tensor>& tensors,
                            std::function<void()> arrived) = 0;
};

// The module's C function that makes one; the number changes with this header.
inline constexpr const char* kDeviceTransferFunction = "retort_cuda_transfer_4";
using MakeDeviceTransfer = DeviceTransfer*();

}  // namespace retort::rpc::detail
