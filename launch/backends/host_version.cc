#include "launch/backends/host_version.h"

#include "launch/version.h"

namespace retort::launch {

std::string version_line() { return std::string(kVersionBeginning) + build_text(); }

}  // namespace retort::launch
