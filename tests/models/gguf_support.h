// Golden checkpoints that can be exported: with a tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "tests/models/golden.h"
#include "tests/support/temporary_folder.h"

namespace retort::models {

// A copy of a golden checkpoint with the tokenizer files of `tokenizer`, which may be changed.
class ExportableModel {
 public:
  explicit ExportableModel(const std::string& golden)
      : ExportableModel(golden, golden_folder("tokenizer")) {}
  ExportableModel(const std::string& golden, const std::filesystem::path& tokenizer) {
    const auto copy = [&](const std::filesystem::path& from) {
      for (const auto& entry : std::filesystem::directory_iterator(from))
        std::filesystem::copy_file(entry.path(), path() / entry.path().filename(),
                                   std::filesystem::copy_options::overwrite_existing);
    };
    copy(golden_folder(golden));
    std::filesystem::remove(path() / "reference.safetensors");
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(tokenizer / name, path() / name);
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path output() const { return path() / "model.gguf"; }

 private:
  test::TemporaryFolder folder_;
};

}  // namespace retort::models
