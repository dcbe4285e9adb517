#include "bench/scale/usage.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace retort::bench {

Usage usage_of_this_process() {
  Usage usage;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    // The descriptor of this very listing is gone by the time that it is looked at.
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    ++usage.descriptors;
    usage.sockets += target.starts_with("socket:") ? 1 : 0;
  }
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  usage.threads = std::distance(begin(tasks), end(tasks));

  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") status >> usage.mib;
  usage.mib /= 1024;  // from KiB

  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  for (const timeval& time : {used.ru_utime, used.ru_stime})
    usage.core_seconds +=
        static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  return usage;
}

void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace retort::bench
