#include "launch/doctor/cgroup_limits.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace retort::launch::doctor {
namespace {

namespace fs = std::filesystem;

// Version 1 says "no limit" by a number near 2^63.
constexpr int64_t kUnlimited = int64_t{1} << 60;

// The first words of a file as a number; nullopt for "max" and for a file that is not there.
std::optional<int64_t> number_in(std::istream& in) {
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}
std::optional<int64_t> number_of(const fs::path& file) {
  std::ifstream in(file);
  return number_in(in);
}

void limit_cores(CgroupLimits& limits, std::optional<int64_t> quota,
                 std::optional<int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;
  const double cores = static_cast<double>(*quota) / static_cast<double>(*period);
  limits.cores = std::min(limits.cores.value_or(cores), cores);
}

void limit_memory(CgroupLimits& limits, std::optional<int64_t> most, std::optional<int64_t> used) {
  if (!most || *most <= 0 || *most >= kUnlimited) return;
  if (limits.memory_bytes && *limits.memory_bytes <= *most) return;
  limits.memory_bytes = most;
  limits.used_bytes = used.value_or(0);
}

// One group of version 2, or of version 1's controllers, whose files have other names.
void read_group(CgroupLimits& limits, const fs::path& group) {
  std::ifstream cpu(group / "cpu.max");  // "200000 100000" or "max 100000"
  const auto quota = number_in(cpu);
  limit_cores(limits, quota, number_in(cpu));
  limit_memory(limits, number_of(group / "memory.max"), number_of(group / "memory.current"));

  limit_cores(limits, number_of(group / "cpu.cfs_quota_us"),
              number_of(group / "cpu.cfs_period_us"));
  limit_memory(limits, number_of(group / "memory.limit_in_bytes"),
               number_of(group / "memory.usage_in_bytes"));
}

// `path` is as /proc/self/cgroup says it: "/system.slice/ssh.service".
void read_upwards(CgroupLimits& limits, const fs::path& root, const fs::path& path) {
  fs::path group = path.relative_path();
  read_group(limits, root / group);
  while (!group.empty()) {
    group = group.parent_path();
    read_group(limits, root / group);
  }
}

}  // namespace

CgroupLimits read_cgroup_limits(const fs::path& root, const fs::path& own) {
  CgroupLimits limits;
  std::ifstream in(own);
  for (std::string line; std::getline(in, line);) {
    // "0::/path" in version 2, "4:cpu,cpuacct:/path" in version 1
    std::istringstream parts(line);
    std::string number, controllers, path;
    std::getline(parts, number, ':');
    std::getline(parts, controllers, ':');
    std::getline(parts, path);
    if (controllers.empty()) read_upwards(limits, root, path);
    if (controllers.find("cpu") != std::string::npos) read_upwards(limits, root / "cpu", path);
    if (controllers == "memory") read_upwards(limits, root / "memory", path);
  }
  return limits;
}

}  // namespace retort::launch::doctor
