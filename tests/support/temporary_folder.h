// A new folder for what one test writes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace retort::test {

// Removed with everything in it when the object dies; if the test has failed by then it is kept,
// and its path printed to stderr.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // Writes <folder>/<name> and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

}  // namespace retort::test
