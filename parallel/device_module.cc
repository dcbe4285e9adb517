#include "parallel/device_module.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/shared_module.h"
#include "parallel/detail/device_backends.h"

namespace retort::parallel {
namespace {

std::string default_path() {
  return module_beside_program("libretort_cuda.so", "RETORT_CUDA_MODULE");
}

}  // namespace

bool DeviceModule::present() { return std::filesystem::exists(default_path()); }

std::shared_ptr<DeviceModule> DeviceModule::load(const std::string& path) {
  const SharedModule module(path.empty() ? default_path() : path);
  auto* make = module.function<detail::MakeDeviceBackends>(detail::kDeviceBackendsFunction);
  return std::make_shared<DeviceModule>(std::unique_ptr<detail::DeviceBackends>(make()));
}

DeviceModule::DeviceModule(std::unique_ptr<detail::DeviceBackends> backends)
    : backends_(std::move(backends)) {}
DeviceModule::~DeviceModule() = default;

std::string DeviceModule::versions() const { return backends_->versions(); }
int64_t DeviceModule::num_devices() const { return backends_->num_devices(); }

DeviceChoice choose_device(const std::vector<RankHost>& ranks, int64_t rank, bool share) {
  RETORT_CHECK(rank >= 0 && rank < static_cast<int64_t>(ranks.size()))
      << "rank " << rank << " of " << ranks.size();
  const auto on = [](const std::string& host) {
    return [&host](const RankHost& r) { return r.host == host; };
  };
  bool shared = false;
  for (const RankHost& r : ranks) {
    const int64_t here = std::ranges::count_if(ranks, on(r.host));
    if (r.num_devices == 0)
      throw Error(
          ErrorCode::kUnavailable,
          "world.device: cuda, but a host shows 0 devices to its ranks; use device: cpu there")
          .with("host", r.host);
    if (here > r.num_devices && !share)
      throw Error(ErrorCode::kUnavailable, "more ranks than devices: the role has " +
                                               std::to_string(here) + " ranks on a host with " +
                                               std::to_string(r.num_devices) +
                                               " devices; lower tp * pp * dp or use another host")
          .with("host", r.host);
    shared = shared || here > r.num_devices;
  }
  const RankHost& mine = ranks[static_cast<size_t>(rank)];
  return {std::count_if(ranks.begin(), ranks.begin() + rank, on(mine.host)) % mine.num_devices,
          shared};
}

}  // namespace retort::parallel
