// A program of Slurm's that answers and ends.
#pragma once

#include <string>
#include <vector>

#include "base/units.h"

namespace retort::launch {

// What it writes, to both of its outputs. kUnavailable when it is not in PATH or fails (with its
// own words), kTimeout when it has not ended within `limit`: what was asked for may be done all the
// same.
// Thread: any, but not beside a Supervisor's run, which waits for all children.
std::string ask_slurm(const std::string& program, const std::vector<std::string>& arguments,
                      Duration limit = Duration(60'000));

}  // namespace retort::launch
