// The golden checkpoints that make_goldens.py wrote.
#pragma once

#include <ATen/core/Tensor.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

namespace retort::models {

inline const char* const kGoldens[] = {
    "llama",           "llama3_rope", "llama_bias_linear", "mistral_window",
    "mistral_sharded", "qwen2",       "qwen2_window_bf16", "qwen3",
    "qwen3_bias"};

inline std::filesystem::path golden_folder(const std::string& name) {
  const char* root = getenv("RETORT_SOURCE_DIR");
  return std::filesystem::path(root ? root : RETORT_SOURCE_DIR) / "tests/models/goldens" / name;
}

// An empty folder of its own, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "retort-models-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace retort::models
