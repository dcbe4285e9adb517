#include "base/similar_file.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/options.h"

namespace retort {
namespace fs = std::filesystem;

std::string similar_file(const fs::path& path) {
  std::error_code error;
  if (path.filename().empty() || fs::exists(path, error)) return "";
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());

  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string nearest = nearest_name(path.filename().string(), candidates);
  return nearest.empty() ? "" : (path.parent_path() / nearest).string();
}

bool is_hub_name(const std::string& text) {
  const auto is_name = [](std::string_view name) {
    return !name.empty() && name != "." && name != ".." &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
             return std::isalnum(c) || c == '-' || c == '_' || c == '.';
           });
  };
  const size_t slash = text.find('/');
  return slash != std::string::npos && is_name(std::string_view(text).substr(0, slash)) &&
         is_name(std::string_view(text).substr(slash + 1));
}

std::string home_expanded(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? path : home + path.substr(1);
}

}  // namespace retort
