// An index of where the lines of a text file begin.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace retort::data::detail {

// The name in a cache for what is kept of a file with this text: of its name, inode, size, times,
// and first and last bytes. kInvalidArgument if the file is gone.
std::string kept_name(const std::filesystem::path& file, std::string_view text);

// Lines that hold only white space do not count. Blocks of 65 numbers: the number of the block's
// first line, then the byte offsets of 64 lines; as a file under memory map, or in memory where the
// text has few lines or there is no cache.
class LineIndex {
 public:
  // The file `<cache>/<name>-<16 digits>.lines` is made if it is not there yet (under a temporary
  // name, so that several processes may race for it). The digits are a hash of the text file's
  // inode, size, times, beginning and end: a file that changes gets another index. A damaged index
  // is made again. `text` is the content of `file`. Errors of writing as base/file.h.
  LineIndex(const std::filesystem::path& file, std::string_view text,
            const std::filesystem::path& cache);

  LineIndex(const LineIndex&) = delete;
  LineIndex& operator=(const LineIndex&) = delete;

  int64_t size() const { return size_; }
  // Offset of line i in the text; kCorrupt if no line begins there (the file was changed in use).
  size_t start(std::string_view text, int64_t i) const;
  int64_t line_number(std::string_view text, int64_t i) const;  // 1-based, blank lines included

 private:
  void use(std::span<const uint64_t> numbers, int64_t size, int64_t lines);
  bool open(const std::filesystem::path& index, std::string_view text);

  std::vector<uint64_t> memory_;
  std::optional<MappedFile> file_;
  std::span<const uint64_t> numbers_;
  int64_t size_ = 0;
  bool no_blank_lines_ = true;
};

// An index with more numbers than this (1 MiB) goes into a file.
inline constexpr size_t kMaxNumbersInMemory = (size_t{1} << 20) / sizeof(uint64_t);

}  // namespace retort::data::detail
