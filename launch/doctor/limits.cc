// What the system lets a process have.
#include <sys/resource.h>

#include <algorithm>

#include "launch/doctor/checks.h"

namespace retort::launch::doctor {
namespace {

std::string shown_limit(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

}  // namespace

int64_t descriptors_needed(const recipes::Recipe& recipe) {
  constexpr int64_t kOwn = 64, kSession = 4, kWatched = 6;
  const int64_t all = recipe.num_processes();
  int64_t most = kOwn + kWatched * all;  // the launcher
  for (const auto& [name, role] : recipe.roles) {
    // The student talks with all that serve, and those with all of the student.
    const int64_t own = role.world.world_size();
    const int64_t peers =
        name == recipes::Recipe::kDrivingRole ? all - own : recipe.student().world.world_size();
    most = std::max(most, kOwn + kSession * peers + own - 1);
  }
  return most;
}

std::optional<Finding> check_descriptors(const HostShare& share) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  std::string what = "a process may open " + shown_limit(files.rlim_max) + " files and sockets";
  if (share.recipe == nullptr) return fine(what);

  const int64_t needed = descriptors_needed(*share.recipe);
  what += "; one of this run needs up to " + std::to_string(needed);
  if (files.rlim_max == RLIM_INFINITY || files.rlim_max >= static_cast<rlim_t>(needed))
    return fine(what);
  return problem(what, "raise the hard limit to " + std::to_string(needed) +
                           " or more: `ulimit -Hn`, nofile in /etc/security/limits.conf, "
                           "LimitNOFILE of a service");
}

std::optional<Finding> check_locked_memory(const HostShare& share) {
  rlimit locked{};
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  const std::string what =
      "a process may lock " + (locked.rlim_max == RLIM_INFINITY
                                   ? std::string("all memory")
                                   : shown_bytes(static_cast<double>(locked.rlim_max)));
  // Nothing of ours locks memory; NCCL does for InfiniBand and RoCE.
  const bool needed = share.uses_devices() && share.num_ranks() > 1;
  if (!needed || locked.rlim_max == RLIM_INFINITY) return fine(what);
  return warning(what,
                 "NCCL over InfiniBand needs all of it: memlock unlimited in "
                 "/etc/security/limits.conf, LimitMEMLOCK=infinity of a service");
}

}  // namespace retort::launch::doctor
