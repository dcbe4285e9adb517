#include "launch/placement/placement.h"

#include <algorithm>
#include <map>

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

// Free slots of launch.hosts, and the roles' way to them.
class Slots {
 public:
  Slots(const Recipe& recipe, const LostHosts& lost, const Placement& placement)
      : recipe_(recipe), lost_(lost), used_(placement.processes) {
    for (const auto& [role, options] : recipe.roles)
      here_[role].resize(recipe.launch.hosts.size());
    for (const auto& [role, places] : placement.hosts)
      for (const size_t host : places)
        if (!lost.contains(host)) ++here_[role][host];
  }

  // The first of a role's hosts with room for its tp ranks that compute together; their slots are
  // taken. kInvalidArgument, naming what is free, if there is none.
  size_t take(const std::string& role, int64_t rank) {
    const RoleOptions& options = recipe_.roles.at(role);
    const int64_t together = options.world.tp;
    const std::vector<size_t> allowed = hosts_for(recipe_.launch.hosts, role, options);
    std::vector<int64_t>& there = here_[role];
    // A role that names devices has no more ranks on a host than devices there.
    const auto has_devices = [&](size_t i) {
      return options.devices.empty() || there[i] + together <= std::ssize(options.devices);
    };
    const auto host = std::ranges::find_if(
        allowed, [&](size_t i) { return free(i) >= together && has_devices(i); });
    if (host == allowed.end())
      refuse_placement(
          "roles." + role + " does not fit: its rank " + std::to_string(rank) +
          (together > 1 ? ", with the tp ranks beside it," : "") + " needs " +
          std::to_string(together) + " slot(s) of one host, and free are " + text_of(allowed) +
          (options.devices.empty()
               ? ""
               : "; its `devices` name " + std::to_string(options.devices.size()) + " of a host"));
    used_[*host] += together;
    there[*host] += together;
    return *host;
  }
  const std::vector<int64_t>& used() const { return used_; }

 private:
  int64_t free(size_t host) const {
    return lost_.contains(host) ? 0 : recipe_.launch.hosts[host].slots - used_[host];
  }
  std::string text_of(const std::vector<size_t>& hosts) const {
    std::string text;
    for (const size_t i : hosts)
      text += (text.empty() ? "" : ", ") + recipe_.launch.hosts[i].host +
              (lost_.contains(i) ? " none, being lost"
                                 : " " + std::to_string(free(i)) + " of " +
                                       std::to_string(recipe_.launch.hosts[i].slots));
    return text;
  }

  const Recipe& recipe_;
  const LostHosts& lost_;
  std::vector<int64_t> used_;
  std::map<std::string, std::vector<int64_t>> here_;  // ranks of a role on each host
};

}  // namespace

size_t Placement::host_of(const std::string& role, int64_t rank) const {
  return hosts.at(role).at(static_cast<size_t>(rank));
}

recipes::RanksOnHost Placement::ranks_on(size_t host) const {
  recipes::RanksOnHost ranks;
  for (const auto& [role, places] : hosts)
    if (const auto here = std::ranges::count(places, host); here > 0) ranks[role] = here;
  return ranks;
}

recipes::RanksOnHost all_ranks(const Recipe& recipe) {
  recipes::RanksOnHost ranks;
  for (const auto& [name, role] : recipe.roles)
    ranks[name] = role.world.world_size();
  return ranks;
}

Placement place_processes(const Recipe& recipe, const LostHosts& lost) {
  check_names(recipe.launch.hosts);
  Placement placement;
  placement.processes.resize(recipe.launch.hosts.size());
  Slots slots(recipe, lost, placement);
  for (const auto& [name, role] : recipe.roles) {
    const int64_t together = role.world.tp;
    for (int64_t rank = 0; rank < role.world.world_size(); rank += together)
      placement.hosts[name].insert(placement.hosts[name].end(), static_cast<size_t>(together),
                                   slots.take(name, rank));
  }
  placement.processes = slots.used();
  return placement;
}

std::vector<KnownHost> known_hosts(const Recipe& recipe) {
  if (recipe.launch.backend == recipes::Backend::kLocal)
    return {{.name = "", .ranks = all_ranks(recipe)}};
  if (recipe.launch.backend != recipes::Backend::kSsh) return {};
  const Placement placement = place_processes(recipe);
  std::vector<KnownHost> hosts;
  for (size_t i = 0; i < recipe.launch.hosts.size(); ++i)
    hosts.push_back({.name = recipe.launch.hosts[i].host, .ranks = placement.ranks_on(i)});
  return hosts;
}

void place_again(const Recipe& recipe, const std::string& role, std::span<const int64_t> ranks,
                 const LostHosts& lost, Placement& placement) {
  const auto together = static_cast<size_t>(recipe.roles.at(role).world.tp);
  Slots slots(recipe, lost, placement);
  std::vector<size_t> hosts = placement.hosts.at(role);
  for (size_t i = 0; i < ranks.size(); i += together) {
    const auto first = static_cast<size_t>(ranks[i]);
    // Ranks whose host still lives stay where they are.
    if (!lost.contains(hosts[first])) continue;
    try {
      std::fill_n(hosts.begin() + ranks[i], together, slots.take(role, ranks[i]));
    } catch (const Error& error) {
      // The recipe is not wrong: what it needs has been lost.
      throw Error(ErrorCode::kUnavailable, error.message());
    }
  }
  placement.hosts[role] = std::move(hosts);
  placement.processes = slots.used();
}

}  // namespace retort::launch
