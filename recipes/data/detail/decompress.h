// JSONL of a file that is compressed, a table of Parquet or Arrow, or a JSON array: made once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace retort::data::detail {

// The plain text of `path`: that file itself, unless its first bytes are those of gzip or
// Zstandard, whose members or frames are decompressed, or of a table (models/text/table_rows.h), of
// which each row is a line of JSON, also by its number, or of a JSON array
// (recipes/data/detail/json_rows.h). An array and a table may be compressed.
//
// With a cache that is `<cache>/<name>-<16 digits of the content's SHA-256>`, made if it is not
//   there yet (written under a temporary name, by one of several processes while the others wait),
//   and stays. Without one it lies in a folder of its own under TMPDIR (/tmp), which goes with this
//   object; a map of it stays readable.
// Errors: kInvalidArgument naming `path` for a damaged or cut file, and for one that is something
//   else (check_json_lines); errors of writing as base/file.h.
class PlainText {
 public:
  // The content of a file, told by its first bytes.
  enum class Content : uint8_t { kText, kGzip, kZstd, kTable, kArray };

  PlainText(const std::filesystem::path& path, const std::filesystem::path& cache);
  ~PlainText();
  PlainText(const PlainText&) = delete;
  PlainText& operator=(const PlainText&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  // Makes path_ of these bytes, which are its own.
  void make(const std::filesystem::path& path, std::string_view bytes, Content content,
            const std::filesystem::path& cache);

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // a folder; empty: none
};

}  // namespace retort::data::detail
