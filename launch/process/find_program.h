// Where a program is that a backend needs.
#pragma once

#include <filesystem>
#include <string>

namespace retort::launch {

// The program's path, from PATH. kUnavailable where it is in none of those folders: "<whose>: there
// is no program `name` in PATH; install <package>".
std::filesystem::path find_program(const std::string& name, const std::string& whose,
                                   const std::string& package);

}  // namespace retort::launch
