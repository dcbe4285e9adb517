// What the control group of this process leaves of its machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace retort::launch::doctor {

struct CgroupLimits {
  std::optional<double> cores;
  std::optional<int64_t> memory_bytes;  // what is used already counts
  int64_t used_bytes = 0;               // of that group; 0 without memory_bytes
};

// The tightest of the group and those above it; versions 1 and 2 of the kernel's interface.
// Nothing is limited where the system has no such files.
CgroupLimits read_cgroup_limits(const std::filesystem::path& root = "/sys/fs/cgroup",
                                const std::filesystem::path& own = "/proc/self/cgroup");

}  // namespace retort::launch::doctor
