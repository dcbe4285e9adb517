#include "parallel/device_module.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/shared_module.h"
#include "base/sizes.h"
#include "kernels/device_kernels.h"
#include "parallel/detail/device_backends.h"

namespace retort::parallel {
namespace {

std::string default_path() {
  return module_beside_program("libretort_cuda.so", "RETORT_CUDA_MODULE");
}

// Throws unless the host of `r` has a device for each of the `here` ranks there.
void check_host(const RankHost& r, int64_t here, bool share) {
  const auto refuse = [&](ErrorCode code, const std::string& message) {
    throw Error(code, message).with("host", r.host);
  };
  const std::string has = std::to_string(r.num_devices) + " devices";
  const auto usable = std::ssize(r.devices);
  const std::string ranks = "the role has " + std::to_string(here) + " ranks on a host";
  if (r.num_devices == 0)
    refuse(ErrorCode::kUnavailable,
           "world.device: cuda, but a host shows 0 devices to its ranks; use device: cpu there");
  for (const int64_t index : r.devices)
    if (index >= r.num_devices)
      refuse(ErrorCode::kUnavailable, "the role's `devices` name device " + std::to_string(index) +
                                          ", but a host has " + has +
                                          ", counted from 0; name others, or use another host");
  if (usable == 0)
    refuse(ErrorCode::kUnavailable, ranks + " with " + has +
                                        ", all of which the `devices` of other roles name; leave "
                                        "it some");
  if (here <= usable || share) return;
  if (r.is_named)
    refuse(ErrorCode::kInvalidArgument, "the role's `devices` name " + std::to_string(usable) +
                                            " devices, but " + ranks + "; name one for each");
  const std::string others = usable == r.num_devices ? ""
                                                     : ", of which `devices` of other roles name " +
                                                           std::to_string(r.num_devices - usable);
  refuse(ErrorCode::kUnavailable, "more ranks than devices: " + ranks + " with " + has + others +
                                      "; lower tp * pp * dp or use another host");
}

}  // namespace

bool DeviceModule::present() { return std::filesystem::exists(default_path()); }

std::shared_ptr<DeviceModule> DeviceModule::load(const std::string& path) {
  const SharedModule module(path.empty() ? default_path() : path);
  auto* make = module.function<detail::MakeDeviceBackends>(detail::kDeviceBackendsFunction);
  std::unique_ptr<detail::DeviceBackends> backends(make());
  kernels::register_module_kernels(module);
  return std::make_shared<DeviceModule>(std::move(backends));
}

DeviceModule::DeviceModule(std::unique_ptr<detail::DeviceBackends> backends)
    : backends_(std::move(backends)) {}
DeviceModule::~DeviceModule() = default;

std::string DeviceModule::versions() const { return backends_->versions(); }
int64_t DeviceModule::num_devices() const { return backends_->num_devices(); }

RankHost rank_host(std::string host, int64_t num_devices, const std::vector<DeviceUser>& users,
                   const std::string& role) {
  const bool is_named = std::ranges::any_of(
      users, [&](const DeviceUser& user) { return user.role == role && !user.devices.empty(); });
  return {.host = std::move(host),
          .num_devices = num_devices,
          .devices = devices_for(users, role, num_devices),
          .is_named = is_named};
}

DeviceChoice choose_device(const std::vector<RankHost>& ranks, int64_t rank, bool share) {
  RETORT_CHECK(rank >= 0 && rank < std::ssize(ranks)) << "rank " << rank << " of " << ranks.size();
  const auto on = [](const std::string& host) {
    return [&host](const RankHost& r) { return r.host == host; };
  };

  // Every rank judges every host, so that all of them end with the same error or with none.
  bool shared = false;
  for (const RankHost& r : ranks) {
    const int64_t here = std::ranges::count_if(ranks, on(r.host));
    check_host(r, here, share);
    shared = shared || here > std::ssize(r.devices);
  }

  const RankHost& mine = ranks[to_size(rank)];
  const int64_t before_me = std::count_if(ranks.begin(), ranks.begin() + rank, on(mine.host));
  return {.index = mine.devices[to_size(before_me) % mine.devices.size()], .shared = shared};
}

}  // namespace retort::parallel
