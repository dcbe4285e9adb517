// The interface that libretort_cuda.so implements for worlds (parallel/cuda). It names nothing of
// CUDA or NCCL: a backend is a c10d::Backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace retort::parallel::detail {

// Of one device, in bytes, whoever has taken them.
struct DeviceMemory {
  int64_t free = 0;
  int64_t total = 0;
};

struct DeviceGroupSpec {
  std::string name;        // "student.dp"
  std::vector<int> ranks;  // of the role, in the order of the group
  int position = 0;        // of this rank in `ranks`
  std::chrono::milliseconds timeout{0};
  bool high_priority = false;  // its kernels go before those of the computation
};

// Threads: the compute thread, where a function does not say otherwise.
class DeviceBackends {
 public:
  virtual ~DeviceBackends() = default;
  // The type of the devices: CUDA's, or that of a device of the tests.
  virtual at::DeviceType device_type() const = 0;
  virtual std::string versions() const = 0;
  virtual int64_t num_devices() const = 0;
  // Makes this device the one of this process: current for this thread, with the allocator ready.
  // Called once in each process.
  virtual void use_device(int64_t index) = 0;
  // Waits until the device has done all work of this process. kCollective or kUnavailable with the
  // device's error.
  virtual void synchronize() = 0;
  // The most bytes that tensors of this process took on its device at one time, since use_device().
  virtual int64_t peak_bytes() const = 0;
  // Of the device of use_device(), as the driver counts it.
  virtual DeviceMemory memory() const = 0;
  // The devices on which this process has a context, which takes memory there: that of use_device()
  // alone, unless somebody has used another one. Throws what c10 throws.
  virtual std::vector<int64_t> contexts() const = 0;
  // Connects the members of a group at once. Collective over them: all call it in the same order.
  // It can wait without limit for one that has ended (connect_in_time.h knows of one). Throws what
  // c10d throws. Threads: any that uses the device.
  virtual c10::intrusive_ptr<c10d::Backend> connect(
      const DeviceGroupSpec& group, const c10::intrusive_ptr<c10d::Store>& store) = 0;

  // Makes the device of use_device() the calling thread's too, which is about to ask it or to end
  // groups. Call it while nothing hangs: it can wait for the device otherwise. Threads: any.
  virtual void use_device_in_thread() = 0;
  // Ends the operations of these groups, all at once: an abort of one group can wait for the whole
  // device, and so for what hangs in the next. They are unusable then. May wait for the device.
  // Throws what c10d throws, after it has tried all. Threads: any that use the device.
  virtual void abort(const std::vector<c10::intrusive_ptr<c10d::Backend>>& groups) = 0;
};

// The name of the module's C function that makes a DeviceBackends. Its number changes with this
// header.
inline constexpr const char* kDeviceBackendsFunction = "retort_cuda_backends_7";
using MakeDeviceBackends = DeviceBackends*();

}  // namespace retort::parallel::detail
