// The rows of a Parquet or Arrow file as JSON text.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace retort::models {

// True when a file that begins with these bytes (6 or more) is one of Parquet or Arrow: an IPC file
// ("Feather 2") or an IPC stream, as Hugging Face's `datasets` keeps them.
bool is_table(std::string_view beginning);

// Reads a file from its first row to its last, a JSON object a row: numbers, booleans, strings,
// lists and structs, with null where the file has none. Lines begin with '{' and hold no newline.
// Memory: a batch of rows (of an Arrow file as it has them, else 1024), and about 1 MiB of text or
// the text of one row, which has at most 128 MiB; whatever the file's size.
// Threads: one at a time.
class TableRows {
 public:
  // kInvalidArgument naming the path if the file is damaged.
  explicit TableRows(const std::filesystem::path& path);
  // The next lines, each with its newline; "" after the last. kInvalidArgument naming the path and
  // the rows that could be read, or the row that has more text. Valid until the next call.
  std::string_view next();
  // The columns that are not read, as their types (times, decimals, bytes) have no JSON text:
  // "day (Date32), ..."; "" if there are none.
  const std::string& left_out() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace retort::models
