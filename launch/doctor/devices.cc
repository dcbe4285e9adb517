// Devices and their driver, through the CUDA module where there is one.
#include <algorithm>
#include <fstream>
#include <set>
#include <vector>

#include "base/error.h"
#include "launch/doctor/checks.h"
#include "parallel/device_module.h"
#include "recipes/roles/device_users.h"
#include "rpc/device_transfer.h"

namespace retort::launch::doctor {
namespace {

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07 ..."; "" without a driver.
std::string driver_text() {
  std::ifstream in("/proc/driver/nvidia/version");
  std::string line;
  std::getline(in, line);
  return line;
}

int64_t ranks_on_devices(const HostShare& share) {
  int64_t most = 0;
  for (const auto& [role, ranks] : share.ranks)
    if (share.recipe->roles.at(role).world.device == parallel::Device::kCuda)
      most = std::max(most, ranks);
  return most;
}

// The first role whose ranks do not find a device each, and why; "" if all do.
std::string misfit(const HostShare& share, int64_t num_devices) {
  for (const auto& [role, ranks] : share.ranks) {
    if (share.recipe->roles.at(role).world.device != parallel::Device::kCuda) continue;
    const auto users = recipes::device_users(*share.recipe, role, share.ranks);
    const std::vector<parallel::RankHost> on_host(
        static_cast<size_t>(ranks), parallel::rank_host("", num_devices, users, role));
    try {
      if (ranks > 0) parallel::choose_device(on_host, 0, /*share=*/false);
    } catch (const Error& error) {
      return "roles." + role + ": " + error.message();
    }
  }
  return "";
}

// "; student shares devices with teacher"; "" if each device has ranks of one role alone.
std::string shared_devices(const HostShare& share, int64_t num_devices) {
  std::string shared;
  for (const auto& [role, ranks] : share.ranks) {
    if (share.recipe->roles.at(role).world.device != parallel::Device::kCuda) continue;
    const auto users = recipes::device_users(*share.recipe, role, share.ranks);
    std::set<std::string> others;  // that come later: one line for two roles
    for (const int64_t index : parallel::taken_devices(users, role, num_devices))
      for (const std::string& other : parallel::other_roles_on(users, role, num_devices, index))
        if (other > role) others.insert(other);
    for (const std::string& other : others)
      shared += "; " + role + " shares devices with " + other;
  }
  return shared;
}

struct Devices {
  int64_t count = 0;
  std::string what;
};

// How tensors go from device to device.
struct Channels {
  std::string what, problem;
};

Devices count_devices() {
  const auto module = parallel::DeviceModule::load();
  const int64_t count = module->num_devices();
  return {.count = count, .what = std::to_string(count) + " devices; " + module->versions()};
}

// The channels of TensorPipe's that device maps can go by on this host; empty where the run has no
// map. Which of them two processes take is said in their logs, as it depends on both.
Channels find_channels(const HostShare& share) {
  if (share.recipe->rpc.device_maps.empty()) return {};
  Channels found;
  std::string works;
  for (const rpc::DeviceChannelState& channel :
       rpc::device_channels(*rpc::load_device_transfer())) {
    const std::string named = channel.name + " (" + channel.how + ")";
    if (channel.problem.empty())
      works += (works.empty() ? "" : ", ") + named;
    else
      found.problem += "; " + named + " does not work here: " + channel.problem;
  }
  found.what = "; device maps go by " + (works.empty() ? "no channel" : works);
  return found;
}

// A module that does not load, for want of the libraries of CUDA: only runs on devices need it.
Finding judge_unloaded(const HostShare& share, int64_t ranks, const std::string& what) {
  const std::string action =
      "install the libraries of CUDA that it names; until then world.device: cuda fails here";
  if (ranks > 0) return problem(what, action);
  return share.recipe == nullptr ? warning(what, action) : fine(what);
}

}  // namespace

std::optional<Finding> check_devices(const HostShare& share) {
  const int64_t ranks = share.recipe == nullptr ? 0 : ranks_on_devices(share);
  const std::string driver = driver_text();
  const std::string driver_said = driver.empty() ? "no NVIDIA driver" : driver;
  if (!parallel::DeviceModule::present()) {
    const std::string what = "no libretort_cuda.so beside the program; " + driver_said;
    if (ranks == 0) return fine(what);
    return problem(what,
                   "world.device: cuda needs a program that was built with ./dev build --cuda");
  }

  Devices devices;
  try {
    devices = count_devices();
  } catch (const Error& error) {
    return judge_unloaded(share, ranks, error.message() + "; " + driver_said);
  }
  const std::string what = devices.what + "; " + driver_said;
  if (ranks == 0) return fine(what);
  const std::string wanted =
      "; a role has " + std::to_string(ranks) + " ranks with device: cuda here";
  if (devices.count == 0)
    return problem(what + wanted, "install the driver, or let the container see the devices");
  if (const std::string why = misfit(share, devices.count); !why.empty())
    return problem(what + "; " + why,
                   "correct roles.<name>.devices, or place fewer ranks of a role on this host "
                   "(slots, hosts, dp)");
  const Channels channels = find_channels(share);
  if (const std::string shared = shared_devices(share, devices.count); !shared.empty())
    return warning(what + channels.what + channels.problem + shared,
                   "each takes memory of them; roles.<name>.devices says otherwise, where the host "
                   "has more");
  if (!channels.problem.empty())
    return warning(what + channels.what + channels.problem,
                   "tensors of a device map take the next channel, which may be slower; cuda_ipc "
                   "needs NVML (libnvidia-ml.so.1), devices without MIG, and one PID namespace for "
                   "the processes");
  return fine(what + channels.what + wanted);
}

}  // namespace retort::launch::doctor
