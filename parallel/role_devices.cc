#include "parallel/role_devices.h"

#include <algorithm>

namespace retort::parallel {
namespace {

// Returns the devices of a host that no user names.
std::vector<int64_t> unnamed_devices(const std::vector<DeviceUser>& users, int64_t num_devices) {
  std::vector<int64_t> free;
  for (int64_t index = 0; index < num_devices; ++index)
    if (std::ranges::none_of(users, [&](const DeviceUser& user) {
          return std::ranges::count(user.devices, index) > 0;
        }))
      free.push_back(index);
  return free;
}

}  // namespace

std::vector<int64_t> devices_for(const std::vector<DeviceUser>& users, const std::string& role,
                                 int64_t num_devices) {
  // Roles that name no devices share the rest in their order, so this one begins behind the ranks
  // of those before it.
  int64_t first = 0;
  for (const DeviceUser& user : users) {
    if (user.role == role && !user.devices.empty()) return user.devices;
    if (user.role == role) break;
    if (user.devices.empty()) first += user.ranks;
  }

  std::vector<int64_t> free = unnamed_devices(users, num_devices);
  if (!free.empty()) std::ranges::rotate(free, free.begin() + first % std::ssize(free));
  return free;
}

std::vector<int64_t> taken_devices(const std::vector<DeviceUser>& users, const std::string& role,
                                   int64_t num_devices) {
  std::vector<int64_t> devices = devices_for(users, role, num_devices);
  const auto user = std::ranges::find(users, role, &DeviceUser::role);
  const int64_t ranks = user == users.end() ? 0 : user->ranks;
  devices.resize(static_cast<size_t>(std::min(ranks, std::ssize(devices))));
  return devices;
}

std::vector<std::string> other_roles_on(const std::vector<DeviceUser>& users,
                                        const std::string& role, int64_t num_devices,
                                        int64_t index) {
  std::vector<std::string> others;
  for (const DeviceUser& user : users) {
    if (user.role == role) continue;
    const std::vector<int64_t> taken = taken_devices(users, user.role, num_devices);
    if (std::ranges::count(taken, index) > 0) others.push_back(user.role);
  }
  return others;
}

}  // namespace retort::parallel
