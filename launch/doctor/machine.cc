// Cores, memory and the shared memory of a host, beside what the run puts there.
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "launch/doctor/cgroup_limits.h"
#include "launch/doctor/checks.h"
#include "launch/plan/role_plan.h"
#include "launch/process/child_process.h"
#include "launch/program/version.h"

namespace retort::launch::doctor {
namespace {

// What NCCL takes of /dev/shm for each pair of ranks of a host is some MiB; 64 MiB, which docker
// gives, is known to be too little.
constexpr double kSharedMemoryForNccl = 1 << 30;

// A line of /proc/meminfo, in bytes; 0 if there is none.
double meminfo(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;)
    if (double kib = 0; word == name + ":" && in >> kib) return kib * 1024;
  return 0;
}

// The bytes of tensors, as `retort plan` computes them, of the ranks on this host.
double planned_bytes(const HostShare& share) {
  double bytes = 0;
  for (const RolePlan& role : plan_roles(*share.recipe)) {
    const auto ranks = share.ranks.find(role.name);
    if (ranks == share.ranks.end()) continue;
    const bool on_host = share.recipe->roles.at(role.name).world.device == parallel::Device::kCpu;
    const int64_t of_device = role.pushed_on_host ? role.pushed_weights : 0;
    const int64_t each = on_host ? role.peak() : of_device;
    bytes += static_cast<double>(ranks->second) * static_cast<double>(each);
  }
  return bytes;
}

std::string of_ranks(const HostShare& share) {
  return std::to_string(share.num_ranks()) +
         (share.num_ranks() == 1 ? " process of the run" : " processes of the run");
}

}  // namespace

std::optional<Finding> check_program(const HostShare&) {
  std::string libraries = version_text();
  libraries = libraries.substr(libraries.find('\n') + 1);
  std::ranges::replace(libraries, '\n', ',');
  return fine(build_text() + "; " + libraries);
}

std::optional<Finding> check_cores(const HostShare& share) {
  const int64_t machine = ::sysconf(_SC_NPROCESSORS_ONLN);
  const int64_t allowed = threads_per_process(0, 1);
  const std::optional<double> quota = read_cgroup_limits().cores;
  std::string what = std::to_string(allowed) + " of " + std::to_string(machine) + " cores";
  if (quota) {
    char text[64];
    std::snprintf(text, sizeof text, ", %.1f by the control group", *quota);
    what += text;
  }
  if (share.num_ranks() > 0) what += ", for " + of_ranks(share);

  if (quota && *quota < static_cast<double>(allowed))
    return warning(what,
                   "threads are counted by cores, so that more of them start than the group lets "
                   "run: set roles.<name>.world.threads, or raise the group's limit");
  if (share.num_ranks() > allowed)
    return warning(what, "processes share cores and wait for each other: use fewer, or more cores");
  return fine(what);
}

std::optional<Finding> check_memory(const HostShare& share) {
  double total = meminfo("MemTotal");
  double available = meminfo("MemAvailable");
  const CgroupLimits group = read_cgroup_limits();
  if (group.memory_bytes) {
    const auto most = static_cast<double>(*group.memory_bytes);
    total = std::min(total, most);
    available = std::min(available, most - static_cast<double>(group.used_bytes));
  }
  std::string what = shown_bytes(available) + " of " + shown_bytes(total) + " are free";
  if (share.num_ranks() == 0) return fine(what);

  const double needed = planned_bytes(share);
  what += "; " + of_ranks(share) + " need at least " + shown_bytes(needed) + " (retort plan)";
  if (needed > total)
    return problem(what, "use a smaller batch, a larger tp or pp, or another host for a role");
  if (needed > available) return warning(what, "end what else uses the memory before the run");
  return fine(what);
}

std::optional<Finding> check_shared_memory(const HostShare& share) {
  struct statvfs room {};
  const bool there = ::statvfs("/dev/shm", &room) == 0;
  const double free = there ? static_cast<double>(room.f_bavail) * double(room.f_frsize) : 0;
  const std::string what =
      there ? "/dev/shm has " + shown_bytes(free) + " free" : "there is no /dev/shm";
  // Our own processes do not use it; NCCL does, among the ranks of a host.
  if (!share.uses_devices() || share.num_ranks() < 2 || free >= kSharedMemoryForNccl)
    return fine(what);
  return warning(what, "NCCL needs it: give the container more (docker run --shm-size=1g)");
}

}  // namespace retort::launch::doctor
