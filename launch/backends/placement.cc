#include "launch/backends/placement.h"

#include <algorithm>

#include "base/error.h"

namespace retort::launch {
namespace {

using recipes::HostOptions;
using recipes::Recipe;
using recipes::RoleOptions;

[[noreturn]] void refuse_placement(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

size_t index_of(const std::vector<HostOptions>& hosts, const std::string& name) {
  const auto found = std::ranges::find(hosts, name, &HostOptions::host);
  return static_cast<size_t>(found - hosts.begin());
}

// The hosts that a role may use, in the order of launch.hosts.
std::vector<size_t> hosts_for(const std::vector<HostOptions>& hosts, const std::string& role,
                              const RoleOptions& options) {
  for (const std::string& name : options.hosts) {
    if (index_of(hosts, name) == hosts.size())
      refuse_placement("roles." + role + ".hosts: '" + name + "' is none of launch.hosts");
    if (std::ranges::count(options.hosts, name) > 1)
      refuse_placement("roles." + role + ".hosts: '" + name + "' is there twice");
  }
  std::vector<size_t> allowed;
  for (size_t i = 0; i < hosts.size(); ++i)
    if (options.hosts.empty() || std::ranges::count(options.hosts, hosts[i].host) > 0)
      allowed.push_back(i);
  return allowed;
}

void check_names(const std::vector<HostOptions>& hosts) {
  for (size_t i = 0; i < hosts.size(); ++i)
    if (index_of(hosts, hosts[i].host) != i)
      refuse_placement("'" + hosts[i].host + "' is there twice; give it the slots of both");
}

}  // namespace

size_t Placement::host_of(const std::string& role, int64_t rank) const {
  return hosts.at(role).at(static_cast<size_t>(rank));
}

Placement place_processes(const Recipe& recipe) {
  const std::vector<HostOptions>& hosts = recipe.launch.hosts;
  check_names(hosts);
  Placement placement;
  placement.processes.resize(hosts.size());
  const auto free = [&](size_t host) { return hosts[host].slots - placement.processes[host]; };

  for (const auto& [name, role] : recipe.roles) {
    const std::vector<size_t> allowed = hosts_for(hosts, name, role);
    const int64_t together = role.world.tp;
    for (int64_t rank = 0; rank < role.world.world_size(); rank += together) {
      const auto host =
          std::ranges::find_if(allowed, [&](size_t i) { return free(i) >= together; });
      if (host == allowed.end()) {
        std::string left;
        for (const size_t i : allowed)
          left += (left.empty() ? "" : ", ") + hosts[i].host + " " + std::to_string(free(i)) +
                  " of " + std::to_string(hosts[i].slots);
        refuse_placement("roles." + name + " does not fit: its rank " + std::to_string(rank) +
                         (together > 1 ? ", with the tp ranks beside it," : "") + " needs " +
                         std::to_string(together) + " slot(s) of one host, and free are " + left);
      }
      placement.processes[*host] += together;
      placement.hosts[name].insert(placement.hosts[name].end(), static_cast<size_t>(together),
                                   *host);
    }
  }
  return placement;
}

}  // namespace retort::launch
