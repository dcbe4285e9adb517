// What must hold in a process that runs no tests, such as a rank that a test started.
#pragma once

#include <stdexcept>
#include <string>

namespace retort::test {

// Throws if it does not; what runs the process prints the text and exits with 1.
inline void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("not true: " + what);
}

}  // namespace retort::test
