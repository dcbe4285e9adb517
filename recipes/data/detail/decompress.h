// Plain text of a .gz or .zst file, decompressed once.
#pragma once

#include <filesystem>

namespace retort::data::detail {

// The plain text of `path`: that file itself if its first bytes are neither gzip's nor Zstandard's,
// else a decompressed one. All members / frames of the file count.
//
// With a cache that is `<cache>/<name>-<16 digits of the content's SHA-256>`, made if it is not
//   there yet (written under a temporary name, so that several processes may race for it), and
//   stays. Without one it lies in a folder of its own under TMPDIR (/tmp), which goes with this
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
