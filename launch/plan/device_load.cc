#include "launch/plan/device_load.h"

#include <map>
#include <utility>

namespace retort::launch {
namespace {

void add_rank(DeviceLoad& load, const RolePlan& role, const std::string& host) {
  load.host = host;
  load.roles.push_back(role.name);
  load.bytes += role.device_bytes();
}

}  // namespace

std::vector<DeviceLoad> shared_devices(const std::vector<RolePlan>& roles) {
  std::map<std::pair<std::string, int64_t>, DeviceLoad> by_device;
  std::map<std::string, DeviceLoad> by_host;
  std::map<std::string, bool> fits_on_one;
  for (const RolePlan& role : roles)
    for (const DevicePlan& there : role.devices) {
      fits_on_one.emplace(there.host, true);
      if (there.devices.size() > 1) fits_on_one[there.host] = false;
      for (const int64_t index : there.devices) {
        add_rank(by_host[there.host], role, there.host);
        if (there.own) continue;
        DeviceLoad& load = by_device[{there.host, index}];
        load.device = index;
        add_rank(load, role, there.host);
      }
    }

  std::vector<DeviceLoad> shared;
  for (const auto& [place, load] : by_device)
    if (load.roles.size() > 1) shared.push_back(load);
  for (const auto& [host, load] : by_host)
    if (load.roles.size() > 1 && fits_on_one.at(host)) shared.push_back(load);
  return shared;
}

}  // namespace retort::launch
