#include "recipes/document/kubernetes_options.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "recipes/document/refuse.h"

namespace retort::recipes {
namespace {

bool is_label(std::string_view text) {
  const auto is_inside = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !text.empty() && text.size() <= 63 && text.front() != '-' && text.back() != '-' &&
         std::ranges::all_of(text, is_inside);
}

}  // namespace

void VolumeOptions::validate() const {
  const std::filesystem::path folder(path);
  if (!folder.is_absolute() || folder.lexically_normal() != folder || !folder.has_filename())
    refuse_option("path is '" + path + "'; expected the folder's absolute path, as /data");
  if (path.find(':') != std::string::npos)
    refuse_option("path is '" + path + "'; a mount has no ':'");
  if (claim.has_value() != source.is_empty())
    refuse_option("of '" + path + "': expected one of claim and source");
  if (claim && claim->empty()) refuse_option("claim is empty; expected the name of one");
}

void KubernetesOptions::validate() const {
  if (!is_label(name_space))
    refuse_option("namespace is '" + name_space +
                  "'; expected small letters, digits and '-', at most 63 of them");
  if (image && image->empty()) refuse_option("image is empty; expected one with the program");
  for (const VolumeOptions& one : volumes)
    if (std::ranges::count(volumes, one.path, &VolumeOptions::path) > 1)
      refuse_option("volumes: the path '" + one.path + "' is there twice");
}

const VolumeOptions* KubernetesOptions::volume_of(const std::string& path) const {
  const VolumeOptions* deepest = nullptr;
  const std::filesystem::path wanted = std::filesystem::path(path).lexically_normal();
  for (const VolumeOptions& volume : volumes) {
    // Mounts may lie inside one another; a path belongs to the deepest that holds it.
    const std::filesystem::path inside = wanted.lexically_relative(volume.path);
    if (inside.empty() || *inside.begin() == "..") continue;
    if (deepest == nullptr || volume.path.size() > deepest->path.size()) deepest = &volume;
  }
  return deepest;
}

}  // namespace retort::recipes
