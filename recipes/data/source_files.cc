#include "recipes/data/source_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace retort::data {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 5> kEndings{".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet",
                                                   ".arrow"};

bool is_data_file(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  const auto ends = [&](std::string_view ending) { return name.ends_with(ending); };
  return !name.starts_with('.') && entry.is_regular_file() &&
         std::any_of(kEndings.begin(), kEndings.end(), ends);
}

bool is_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> guard(&found, ::globfree);
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  if (status == GLOB_NOMATCH) return {};
  if (status != 0)
    throw Error(ErrorCode::kUnavailable, pattern + ": its folders cannot be looked through");
  return {found.gl_pathv, found.gl_pathv + found.gl_pathc};
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "'" + path + "' " + why);
}

}  // namespace

std::vector<std::string> source_files(const std::string& path) {
  if (fs::is_regular_file(path)) return {path};
  std::vector<std::string> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path))
      if (is_data_file(entry)) files.push_back(entry.path().string());
  } else if (is_pattern(path)) {
    files = matches(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Source> expand_sources(const std::vector<Source>& sources) {
  std::vector<Source> all;
  for (const Source& source : sources) {
    const bool pattern = is_pattern(source.path) && !fs::exists(source.path);
    if (pattern && source.path.find("**") != std::string::npos)
      refuse(source.path, "holds **; a * matches names in one folder: write a source for each");
    const std::vector<std::string> files = source_files(source.path);
    if (files.empty() && fs::is_directory(source.path))
      refuse(source.path,
             "holds no file that ends in .jsonl, .jsonl.gz, .jsonl.zst, .parquet or .arrow");
    if (files.empty()) refuse(source.path, pattern ? "matches no file" : "is not a file");

    for (const std::string& file : files) {
      if (!fs::is_regular_file(file))
        refuse(source.path, "matches '" + file + "', which is not a file");
      all.push_back(source);
      all.back().path = file;
    }
  }
  return all;
}

}  // namespace retort::data
