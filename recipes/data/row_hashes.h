// A hash of each row of a file, by which a later process tells which rows of the file were changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/file.h"
#include "recipes/data/jsonl.h"

namespace retort::data {

// 8 bytes a row (checksum64 of its line) in a file of a folder, `rows-FINGERPRINT.hashes`, which is
// mapped: the process's own memory does not grow with the rows. Threads: const member functions may
// be called from any thread.
class RowHashes {
 public:
  // Finds the hashes that were kept in `folder` for content of this fingerprint
  // (JsonlFile::fingerprint); nullopt: there are none, or they are damaged.
  static std::optional<RowHashes> find(const std::filesystem::path& folder,
                                       const std::string& fingerprint);
  // The hashes of the file, made and kept unless they are there. Reads all of it then. Errors of
  // writing as base/file.h.
  static RowHashes keep(const JsonlFile& file, const std::filesystem::path& folder);

  int64_t size() const;
  uint64_t at(int64_t row) const;

 private:
  explicit RowHashes(MappedFile file) : file_(std::move(file)) {}
  bool is_whole() const;

  MappedFile file_;
};

}  // namespace retort::data
