#include "engines/weights/weight_folder.h"

#include <string>

namespace retort::engines {
namespace {

const std::filesystem::path& checked_path(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!folder.is_absolute())
    refuse_folder(ErrorCode::kInvalidArgument, folder,
                  "the path is not absolute, and the server stands in another folder");
  if (!std::filesystem::is_directory(folder, ignored))
    refuse_folder(ErrorCode::kInvalidArgument, folder,
                  "is no folder; the server takes weights as a model folder");
  return folder;
}

}  // namespace

WeightFolder::WeightFolder(const std::filesystem::path& folder)
    : config(models::read_model_config(checked_path(folder))), weights(folder) {
  if (!weights.contains(kEmbeddingName))
    refuse_folder(ErrorCode::kMismatch, folder, std::string("has no ") + kEmbeddingName);
}

void refuse_folder(ErrorCode code, const std::filesystem::path& folder, const std::string& what) {
  throw Error(code, folder.string() + ": " + what);
}

}  // namespace retort::engines
