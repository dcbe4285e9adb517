#include "recipes/data/source_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/similar_file.h"

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

// Folders that a pattern begins with, and that are there by that very name, are no part of the
// pattern, whatever characters they have: a run [3]/data/*.jsonl.
std::string with_literal_folders(const std::string& pattern) {
  fs::path folder, rest;
  for (const fs::path& part : fs::path(pattern)) {
    if (rest.empty() && fs::is_directory(folder / part))
      folder /= part;
    else
      rest /= part;
  }
  if (!is_pattern(folder.string())) return pattern;
  std::string escaped;
  for (const char c : folder.string()) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped + "/" + rest.string();
}

// Says what may have been meant by a path that names nothing.
std::string hint(const std::string& path, bool pattern) {
  if (pattern)
    return path.find('[') == std::string::npos
               ? ""
               : "; [ ] in a pattern stand for one of the characters between them, and a folder "
                 "that has them in its name must be there";
  if (const std::string near = similar_file(path); !near.empty())
    return "; did you mean '" + near + "'?";
  if (is_hub_name(path))
    return "; nothing is downloaded here: if it is a name on the Hugging Face Hub, fetch it with "
           "`hf download --repo-type dataset " +
           path + " --local-dir FOLDER` and name that folder";
  return "";
}

std::vector<std::string> matches(const std::string& given) {
  const std::string pattern = with_literal_folders(given);
  glob_t found{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> guard(&found, ::globfree);
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  if (status == GLOB_NOMATCH) return {};
  if (status != 0)
    throw Error(ErrorCode::kUnavailable, given + ": its folders cannot be looked through");
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
  // Neither a folder nor glob lists in a fixed order, but rows are numbered through the files.
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Source> expand_sources(const std::vector<Source>& sources) {
  std::vector<Source> all;
  for (const Source& source : sources) {
    // A file or folder of that very name is no pattern, whatever characters it has.
    const bool pattern = is_pattern(source.path) && !fs::exists(source.path);
    if (pattern && source.path.find("**") != std::string::npos)
      refuse(source.path, "holds **; a * matches names in one folder: write a source for each");
    const std::vector<std::string> files = source_files(source.path);
    if (files.empty() && fs::is_directory(source.path))
      refuse(source.path,
             "holds no file that ends in .jsonl, .jsonl.gz, .jsonl.zst, .parquet or .arrow");
    if (files.empty())
      refuse(source.path,
             (pattern ? "matches no file" : "is not a file") + hint(source.path, pattern));

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
