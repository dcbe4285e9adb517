#include "tests/house/sources.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "base/file.h"

namespace retort::house {
namespace fs = std::filesystem;
namespace {

const std::set<std::string> kFolders{
    ".ci",   "base",    "http",   "engines", "environments", "rpc",   "parallel", "models", "roles",
    "share", "recipes", "launch", "tests",   "bench",        "cmake", "python",   "kernels"};
// Files at the top of the tree.
const std::set<std::string> kTop{"CMakeLists.txt", "dev"};
const std::set<std::string> kGenerated{"target", "__pycache__"};

bool is_source(const fs::path& path) {
  static const std::set<std::string> extensions{".rs", ".py", ".sh", ".yaml", ".cmake"};
  return is_cxx(path) || extensions.count(path.extension()) ||
         path.filename() == "CMakeLists.txt" || path == ".ci/run";
}

// The files under a folder of the tree that `wanted` takes.
std::vector<Source> read_folder(const fs::path& root, const fs::path& folder,
                                bool (*wanted)(const fs::path&)) {
  std::vector<Source> found;
  if (!fs::is_directory(root / folder)) return found;
  for (auto it = fs::recursive_directory_iterator(root / folder);
       it != fs::recursive_directory_iterator(); ++it) {
    const fs::path path = fs::relative(it->path(), root);
    if (it->is_directory() && kGenerated.count(path.filename()))
      it.disable_recursion_pending();
    else if (it->is_regular_file() && wanted(path))
      found.push_back({path, split_lines(read_file(it->path()))});
  }
  return found;
}

void add_file(std::vector<Source>& sources, const fs::path& root, const fs::path& path) {
  if (fs::is_regular_file(root / path))
    sources.push_back({path, split_lines(read_file(root / path))});
}

}  // namespace

std::vector<Source> read_sources(const fs::path& root) {
  std::vector<Source> sources;
  for (const auto& file : kTop)
    add_file(sources, root, file);
  for (const auto& folder : kFolders)
    for (auto& source : read_folder(root, folder, is_source))
      sources.push_back(std::move(source));
  // So that what is told does not depend on the order that a file system has.
  std::sort(sources.begin(), sources.end(), [](auto& a, auto& b) { return a.path < b.path; });
  return sources;
}

std::vector<Source> read_documents(const fs::path& root) {
  std::vector<Source> documents = read_folder(root, "docs", is_document);
  add_file(documents, root, "README.md");
  return documents;
}

bool is_cxx(const fs::path& path) {
  static const std::set<std::string> extensions{".h", ".cc", ".cu", ".cuh"};
  return extensions.count(path.extension()) != 0;
}

bool is_header(const fs::path& path) {
  return path.extension() == ".h" || path.extension() == ".cuh";
}

bool is_document(const fs::path& path) { return path.extension() == ".md"; }

std::vector<std::string> split_lines(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

}  // namespace retort::house
