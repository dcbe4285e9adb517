#include "launch/doctor/inputs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "recipes/roles/input_paths.h"

namespace retort::launch::doctor {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBeginning = 64 << 10;

// The paths that the ranks on this host read.
std::vector<recipes::InputPath> needed_paths(const HostShare& share) {
  std::vector<recipes::InputPath> paths = recipes::input_paths(*share.recipe);
  std::erase_if(paths, [&](const recipes::InputPath& input) {
    const auto ranks = share.ranks.find(input.role);
    return ranks == share.ranks.end() || ranks->second == 0;
  });
  return paths;
}

// The size of a file and a hash of its beginning, so that no model has to be read in full.
std::string file_print(const fs::path& file) {
  std::string beginning(kBeginning, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  return std::to_string(fs::file_size(file)) + " " + sha256_hex(beginning);
}

}  // namespace

std::string path_print(const std::string& path) {
  if (fs::is_regular_file(path)) return file_print(path);
  if (!fs::is_directory(path)) return "";
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_regular_file())
      files.push_back(entry.path().filename().string() + " " + file_print(entry.path()));
  std::ranges::sort(files);
  std::string all;
  for (const std::string& file : files)
    all += file + "\n";
  return sha256_hex(all);
}

std::map<std::string, std::string> path_prints(const HostShare& share) {
  std::map<std::string, std::string> prints;
  if (share.recipe == nullptr) return prints;
  for (const recipes::InputPath& needed : needed_paths(share))
    prints[needed.path] = path_print(needed.path);
  return prints;
}

std::optional<Finding> check_inputs(const HostShare& share) {
  if (share.num_ranks() == 0) return std::nullopt;
  std::string missing;
  int64_t found = 0;
  for (const recipes::InputPath& needed : needed_paths(share)) {
    if (path_print(needed.path).empty())
      missing += (missing.empty() ? "" : ", ") + needed.key + ": " + needed.path;
    else
      ++found;
  }
  if (!missing.empty())
    return problem("not there: " + missing,
                   "correct the path, or share or copy the folder so that this host sees it there");
  return fine(std::to_string(found) + " paths of models and data are there");
}

std::vector<Finding> compare_prints(
    const std::map<std::string, std::map<std::string, std::string>>& prints) {
  std::vector<Finding> findings;
  std::map<std::string, std::map<std::string, std::string>> hosts_of;  // path -> print -> hosts
  for (const auto& [host, of_host] : prints)
    for (const auto& [path, print] : of_host) {
      std::string& hosts = hosts_of[path][print];
      // A path that is missing is a problem of its own.
      if (!print.empty()) hosts += (hosts.empty() ? "" : ", ") + host;
    }

  bool is_missing = false;
  for (auto& [path, prints_of] : hosts_of) {
    is_missing |= prints_of.erase("") > 0;
    if (prints_of.size() < 2) continue;
    std::string what = path + " is not the same on";
    for (const auto& [print, hosts] : prints_of)
      what += (what.ends_with("on") ? " " : " and on ") + hosts;
    findings.push_back(
        problem(what, "share the folder, or copy it again from one host to the other"));
  }
  if (findings.empty() && !is_missing && prints.size() > 1)
    findings.push_back(fine("models and data are the same on all " + std::to_string(prints.size()) +
                            " hosts (names, sizes, and the beginning of each file)"));
  return findings;
}

}  // namespace retort::launch::doctor
