#include "launch/ssh/host_version.h"

#include "launch/program/version.h"

namespace retort::launch {

std::string version_line() { return std::string(kVersionBeginning) + build_text(); }

}  // namespace retort::launch
