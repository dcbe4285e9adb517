// Plain text of a file that is compressed, or a table of Parquet or Arrow: made once.
#pragma once

#include <filesystem>

namespace retort::data::detail {

// The plain text of `path`: that file itself, unless its first bytes are those of gzip or
// Zstandard, whose members or frames are decompressed, or of a table (models/text/table_rows.h), of
// which each row is a line of JSON, also by its number.
//
// With a cache that is `<cache>/<name>-<16 digits of the content's SHA-256>`, made if it is not
//   there yet (written under a temporary name, by one of several processes while the others wait),
//   and stays. Without one it lies in a folder of its own under TMPDIR (/tmp), which goes with this
//   object; a map of it stays readable.
// Errors: kInvalidArgument naming `path` for a damaged or cut file; errors of writing as
//   base/file.h.
class PlainText {
 public:
  PlainText(const std::filesystem::path& path, const std::filesystem::path& cache);
  ~PlainText();
  PlainText(const PlainText&) = delete;
  PlainText& operator=(const PlainText&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // a folder; empty: none
};

}  // namespace retort::data::detail
