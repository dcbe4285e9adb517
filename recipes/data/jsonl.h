// Random access to the lines of a JSONL file through a memory map and an offset index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace retort::data {

// Lines that hold only white space do not count. Memory: 8 bytes for each line; the text stays in the map.
class JsonlFile {
 public:
  // `cache`: where a decompressed .gz/.zst goes (named by content); empty: beside the file. kInvalidArgument naming the path.
  explicit JsonlFile(const std::filesystem::path& path, const std::filesystem::path& cache = {});
  int64_t size() const;
  std::string_view line(int64_t i) const;
  int64_t line_number(int64_t i) const;  // 1-based, as an editor shows it
  const std::filesystem::path& path() const;
  std::string fingerprint() const;  // SHA-256 of the content

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace retort::data
