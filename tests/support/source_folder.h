// Where the repository lies.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace retort::test {

// RETORT_SOURCE_DIR, which ctest sets; else the folder that the test was started in.
inline std::filesystem::path source_folder() {
  const char* folder = std::getenv("RETORT_SOURCE_DIR");
  return folder ? std::filesystem::path(folder) : std::filesystem::current_path();
}

}  // namespace retort::test
