#include "base/this_host.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/file.h"

namespace retort {

std::string this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot = read_file("/proc/sys/kernel/random/boot_id");
  boot.resize(std::min<size_t>(boot.size(), 8));
  return std::string(name.data()) + " (" + boot + ")";
}

}  // namespace retort
