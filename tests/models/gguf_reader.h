// Reads a GGUF file back, without anything of the writer's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace retort::models {

struct GgufFile {
  using Value = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>,
                             std::vector<int32_t>>;
  struct Tensor {
    uint32_t type = 0;
    std::vector<int64_t> sizes;  // as in the file: the columns first
    std::string bytes;
  };

  // Fails the test for a file that is not what the format says: magic, version, alignment, tensors
  // that overlap or do not fill the file.
  explicit GgufFile(const std::filesystem::path& path);

  std::map<std::string, Value> values;
  std::vector<std::string> names;  // of the tensors, in the file's order
  std::map<std::string, Tensor> tensors;

  template <class T>
  T get(const std::string& key) const {
    const auto found = values.find(key);
    return found == values.end() ? T{} : std::get<T>(found->second);
  }
};

}  // namespace retort::models
