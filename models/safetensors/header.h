// The header of one safetensors file. Private to models/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "models/safetensors/layout.h"

namespace retort::models {

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses and checks everything that the header claims against the file's size. kCorrupt naming file
// and tensor.
SafetensorsHeader parse_safetensors_header(std::string_view file,
                                           const std::filesystem::path& path);

// "F32" and so on. kInvalidArgument for a dtype that the format has no name for.
std::string safetensors_dtype_name(at::ScalarType dtype);

}  // namespace retort::models
