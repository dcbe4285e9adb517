// The first line that a launcher and `retort host` compare: whether they are one program.
#pragma once

#include <string>
#include <string_view>

namespace retort::launch {

inline constexpr std::string_view kVersionBeginning = "retort-host 1 ";

// A line with the version of retort and the identity of its build.
std::string version_line();

}  // namespace retort::launch
