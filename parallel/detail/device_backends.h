// What libretort_cuda.so implements for worlds (parallel/cuda). Nothing of CUDA or NCCL is named
// here: a backend is c10d's.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace retort::parallel::detail {

struct DeviceGroupSpec {
  std::string name;  // "student.dp"
  int position = 0;  // of this rank in the group
  int size = 1;
  std::chrono::milliseconds timeout{0};
  bool high_priority = false;  // its kernels go before those of the computation
};

// Threads: the compute thread.
class DeviceBackends {
 public:
  virtual ~DeviceBackends() = default;
  virtual std::string versions() const = 0;
  virtual int64_t num_devices() const = 0;
  // Makes a device that of this process: current for this thread, allocator ready. Once for each
  // process.
  virtual void use_device(int64_t index) = 0;
  // Waits until the device has done all work of this process. kCollective or kUnavailable with the
  // device's error.
  virtual void synchronize() = 0;
  // Collective over the members, all of which call in one order: connects them at once. Throws what
  // c10d throws.
  virtual c10::intrusive_ptr<c10d::Backend> connect(
      const DeviceGroupSpec& group, const c10::intrusive_ptr<c10d::Store>& store) = 0;
};

// The module's C function that makes them; the number changes with this header.
inline constexpr const char* kDeviceBackendsFunction = "retort_cuda_backends_1";
using MakeDeviceBackends = DeviceBackends*();

}  // namespace retort::parallel::detail
