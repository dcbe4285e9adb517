// A folder for what is written on the way and nobody needs afterwards.
#pragma once

#include <filesystem>

namespace retort::launch {

// A folder in the system's folder for temporary files, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::filesystem::path path_;
};

}  // namespace retort::launch
