// How the roles that have ranks on one host share out its devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace retort::parallel {

// A role with ranks on a host that compute on devices.
struct DeviceUser {
  std::string role;
  int64_t ranks = 0;                  // of the role on the host
  std::vector<int64_t> devices = {};  // by name; empty: those that no user names
};

// The devices of a host that has `num_devices` for the ranks of `role` there, in the order in which
// they take them: those that it names; or all that nobody names, of which the users without names
// take each as many as it has ranks, in the order of `users`, and begin again with the first when
// there are no more. Empty if others name all. A pure function; whether the host has what is named
// is choose_device's to say.
std::vector<int64_t> devices_for(const std::vector<DeviceUser>& users, const std::string& role,
                                 int64_t num_devices);

// Those of them that the ranks there take.
std::vector<int64_t> taken_devices(const std::vector<DeviceUser>& users, const std::string& role,
                                   int64_t num_devices);

// The other users with a rank on device `index`, in their order.
std::vector<std::string> other_roles_on(const std::vector<DeviceUser>& users,
                                        const std::string& role, int64_t num_devices,
                                        int64_t index);

}  // namespace retort::parallel
