// Which host each process of a run is started on, with `launch.hosts`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "recipes/document/recipe.h"
#include "recipes/roles/device_users.h"

namespace retort::launch {

struct Placement {
  std::map<std::string, std::vector<size_t>> hosts;  // role -> rank -> index in launch.hosts
  std::vector<int64_t> processes;                    // on each of launch.hosts

  size_t host_of(const std::string& role, int64_t rank) const;
  // The ranks on that one of launch.hosts.
  recipes::RanksOnHost ranks_on(size_t host) const;
};

// All ranks of a run that is on one host.
recipes::RanksOnHost all_ranks(const recipes::Recipe& recipe);

// Hosts that are lost, by index in launch.hosts: nothing is placed on them.
using LostHosts = std::set<size_t>;

// Roles in their order, ranks in theirs, onto the hosts in theirs: each host is filled before the
// next one is begun, and the tp ranks that compute together are on one host. `roles.<name>.hosts`
// leaves a role the hosts that it names. kInvalidArgument, naming the role and what is free, when
// something does not fit, and for hosts that nobody listed or that are listed twice.
Placement place_processes(const recipes::Recipe& recipe, const LostHosts& lost = {});

// The hosts that `retort launch` starts processes on, and how many of which: launch.hosts, or "",
// the one that it runs on. None where somebody else places them.
struct KnownHost {
  std::string name;
  recipes::RanksOnHost ranks;
};
std::vector<KnownHost> known_hosts(const recipes::Recipe& recipe);

// Moves those of a role's `ranks`, in ascending order and whole groups of tp ranks, that are on
// lost hosts to free slots of others; the rest stays where it is. kUnavailable, changing nothing,
// when there is no room for them.
void place_again(const recipes::Recipe& recipe, const std::string& role,
                 std::span<const int64_t> ranks, const LostHosts& lost, Placement& placement);

}  // namespace retort::launch
