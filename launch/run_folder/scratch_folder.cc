#include "launch/run_folder/scratch_folder.h"

#include "base/file.h"

namespace retort::launch {

ScratchFolder::ScratchFolder()
    : path_(std::filesystem::temp_directory_path() / ("retort" + temporary_suffix())) {
  std::filesystem::create_directory(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code gone;
  std::filesystem::remove_all(path_, gone);
}

}  // namespace retort::launch
