// Random access to the lines of a JSONL file through a memory map and an offset index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace retort::data {

// Lines that hold only white space do not count. The text stays in its map, and the offsets (8
// bytes a line) in a file of the cache that is mapped, too: the process's own memory does not grow
// with the file. Without a cache, and for less than about 130 000 lines, the offsets are in memory.
// A second process, or a second run with the same cache, does not read the file to find its lines.
class JsonlFile {
 public:
  // `cache`: where the text of a .gz, .zst, Parquet or Arrow file or of a JSON array (named by
  // content) and the index (`NAME-HASH.lines`) go;
  // empty: the former into a temporary file that is removed as soon as it is mapped, the latter
  // nowhere. kInvalidArgument naming the path; errors of writing as base/file.h.
  explicit JsonlFile(const std::filesystem::path& path, const std::filesystem::path& cache = {});
  int64_t size() const;
  std::string_view line(int64_t i) const;  // kCorrupt if the file was changed while it is open
  int64_t line_number(int64_t i) const;    // 1-based, as an editor shows it
  const std::filesystem::path& path() const;
  // SHA-256 of the content. That of 64 MiB or more is kept in the cache (`NAME-HASH.sha256`), and
  // made anew when the file is another one by its inode, size, times, or first or last bytes. Reads
  // all of the file unless it is kept, 1.5 GB/s; kCorrupt if such a file was changed meanwhile.
  std::string fingerprint() const;
  // The same, but kCancelled once `stop`, which is asked every few milliseconds, says so. Whoever
  // asks later begins anew.
  std::string fingerprint(const std::function<bool()>& stop) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace retort::data
