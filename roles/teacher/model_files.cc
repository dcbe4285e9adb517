#include "roles/teacher/model_files.h"

#include <set>

#include "base/hash.h"

namespace retort::roles {

std::string stamp_of_model(const std::filesystem::path& folder) {
  if (folder.empty()) return "";
  // A folder lists its files in no order, so they are sorted before they are hashed.
  std::set<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string kind = file.path().extension();
    if (!file.is_regular_file() || (kind != ".safetensors" && kind != ".json")) continue;
    const auto time = file.last_write_time().time_since_epoch().count();
    files.insert(file.path().filename().string() + " " + std::to_string(file.file_size()) + " " +
                 std::to_string(time));
  }

  Sha256 hash;
  for (const std::string& file : files)
    hash.update(file + "\n");
  return hash.hex_digest().substr(0, 16);
}

}  // namespace retort::roles
