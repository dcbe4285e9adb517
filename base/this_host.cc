#include "base/this_host.h"

#include <algorithm>

#include "base/file.h"
#include "base/host_name.h"

namespace retort {

std::string boot_id() { return read_file("/proc/sys/kernel/random/boot_id"); }

std::string this_host() {
  std::string boot = boot_id();
  boot.resize(std::min<size_t>(boot.size(), 8));
  return host_name() + " (" + boot + ")";
}

}  // namespace retort
