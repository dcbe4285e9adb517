// The tokens of all rows of a data set as a file, for several ranks and runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "recipes/data/sample.h"

namespace retort::data::detail {

// The result of making a row: a sample, or why it is a bad one.
struct MadeRow {
  Sample sample;    // its origin is not kept
  std::string bad;  // "" if it is good
};

// A file under memory map: a record for each row (checksum, ids, targets, fields), then where each
// record begins (8 bytes a row), then how many there are. The process's own memory does not grow
// with it.
// Threads: any number read.
class TokenFile {
 public:
  // kCorrupt naming the file if it is none of `rows` rows.
  TokenFile(const std::filesystem::path& path, int64_t rows);
  // The sample, with this origin. kInvalidArgument for a bad row, with what was said when it was
  // made; kCorrupt naming the file for a record that is damaged.
  Sample sample(int64_t row, const std::string& origin) const;

 private:
  MappedFile file_;
  int64_t rows_;
};

// Writes such a file under a temporary name, with `make` called for every row once, by as many
// threads as the host has cores. What `make` throws ends it. Memory: 8 bytes a row, and the samples
// of a few thousand rows. Errors of writing as base/file.h.
void write_token_file(const std::filesystem::path& path, int64_t rows,
                      const std::function<MadeRow(int64_t row)>& make);

}  // namespace retort::data::detail
