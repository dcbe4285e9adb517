#include "parallel/device_module.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/shared_module.h"
#include "base/sizes.h"
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
  RETORT_CHECK(rank >= 0 && rank < std::ssize(ranks)) << "rank " << rank << " of " << ranks.size();
  const auto on = [](const std::string& host) {
    return [&host](const RankHost& r) { return r.host == host; };
  };

  // Every rank judges every host, so that all of them end with the same error or with none.
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

  const RankHost& mine = ranks[to_size(rank)];
  const int64_t before_me = std::count_if(ranks.begin(), ranks.begin() + rank, on(mine.host));
  return {.index = before_me % mine.num_devices, .shared = shared};
}

}  // namespace retort::parallel
