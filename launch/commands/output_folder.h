// Where a command writes a folder. Private to launch/.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace retort::launch {

// Makes the folders above `output`. kInvalidArgument if it exists and is not empty.
inline void prepare_output_folder(const std::string& output) {
  namespace fs = std::filesystem;
  if (fs::exists(output) && !fs::is_empty(output))
    throw Error(ErrorCode::kInvalidArgument, "--output '" + output + "' exists and is not empty");
  if (const auto parent = fs::path(output).parent_path(); !parent.empty())
    fs::create_directories(parent);
}

}  // namespace retort::launch
