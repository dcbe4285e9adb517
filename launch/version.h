// What `retort --version` prints.
#pragma once

#include <string>

namespace retort::launch {

// "retort 0.1.0\nLibTorch 2.11.0\n..."
std::string version_text();

}  // namespace retort::launch
