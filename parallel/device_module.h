// The part of the CUDA module that worlds use: devices, and collectives on their memory. The
// program itself links no CUDA; libretort_cuda.so is opened where a recipe asks for `world.device:
// cuda`, and not otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/role_devices.h"

namespace retort::parallel {

namespace detail {
class DeviceBackends;
}

class DeviceModule {
 public:
  // Opens the module: `path`, or by default RETORT_CUDA_MODULE, or libretort_cuda.so in the
  // program's folder. Its kernels are those of its devices from then on. Call it before the first
  // use of LibTorch in the process, which settles once whether there is CUDA. Never call it in a
  // process that forks later, nor in the launcher.
  // kUnavailable: there is no such file, or a library that it needs is missing (docs/gpu.md says
  // which wheels bring them).
  static std::shared_ptr<DeviceModule> load(const std::string& path = "");
  static bool present();  // whether there is such a file; opens nothing
  // Tests bring an implementation of their own.
  explicit DeviceModule(std::unique_ptr<detail::DeviceBackends> backends);
  ~DeviceModule();

  std::string versions() const;  // "CUDA 13.0, NCCL 2.28.9"
  // Devices that this process can use; 0 without a driver or device.
  int64_t num_devices() const;
  detail::DeviceBackends& backends() { return *backends_; }

 private:
  std::unique_ptr<detail::DeviceBackends> backends_;
};

// What a rank tells the others before devices are chosen.
struct RankHost {
  std::string host;         // the same string for all ranks on one machine
  int64_t num_devices = 0;  // that the driver shows to this rank
  // Which of them are for the role's ranks there, in the order in which they take them; whether
  // the recipe names them.
  std::vector<int64_t> devices = {};
  bool is_named = false;
};

// With the devices of `role`, one of `users`, on that host.
RankHost rank_host(std::string host, int64_t num_devices, const std::vector<DeviceUser>& users,
                   const std::string& role);

// Where one rank computes.
struct DeviceChoice {
  int64_t index = 0;  // of the device in this process
  // Two ranks of the role, this one or others, have one device. NCCL refuses that, so collectives
  // go through host memory.
  bool shared = false;
};

// The device of rank `rank`: of those for the role on its host the one at its number among the
// ranks there, modulo how many these are. `ranks` are in rank order. A pure function with the same
// outcome on every rank.
//
// Errors: kUnavailable for a host without devices, and for a device by name that it does not have;
//   also for a host with more ranks than devices, naming both numbers, unless `share` allows
//   several ranks on one; kInvalidArgument for more ranks than names.
DeviceChoice choose_device(const std::vector<RankHost>& ranks, int64_t rank, bool share);

}  // namespace retort::parallel
