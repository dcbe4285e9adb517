// Which program this is: what `retort --version` prints, and what other hosts compare.
#pragma once

#include <string>

namespace retort::launch {

// "retort 0.1.0\nLibTorch 2.11.0\nCUDA module present". It does not ask LibTorch, which looks for
// CUDA once in a process: that must come behind the opening of the module.
std::string version_text();
// "retort 0.1.0, build e9b809c3...": equal where the program is the same, byte by byte.
std::string build_text();

}  // namespace retort::launch
