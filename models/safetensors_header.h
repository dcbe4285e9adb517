// The header of one safetensors file. Private to models/.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace retort::models {

struct TensorEntry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the file
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses and checks everything that the header claims against the file's size. kCorrupt naming file and tensor.
SafetensorsHeader parse_safetensors_header(std::string_view file, const std::filesystem::path& path);

// "F32" and so on. kInvalidArgument for a dtype that the format has no name for.
std::string safetensors_dtype_name(at::ScalarType dtype);

}  // namespace retort::models
