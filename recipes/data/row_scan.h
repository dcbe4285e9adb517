// A look at all rows of a run's data, before the run comes to them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "recipes/data/bad_rows.h"
#include "recipes/data/options.h"

namespace retort::data {

// A check of a row without tokenising it: check_sample_row and its like. Throws kInvalidArgument,
// without the row's origin.
using RowCheck = void (*)(std::string_view json_line, const Source& source);

// The findings of a look at all rows.
struct RowFindings {
  int64_t rows = 0;
  int64_t bytes = 0;  // of their lines
  double seconds = 0;
  BadRows bad;
  // True if the first row of a file of data.train holds messages (holds_messages).
  bool has_messages = false;

  // "20000 rows, 0.012 GB at 0.15 GB/s".
  std::string text() const;
};

// Opens the files and goes through every row of data.train and data.eval: JSON, columns and their
// types. A row that passes may still be bad once it is tokenised. Then keeps the hashes of the
// training rows in `cache` (RowHashes), unless they are there: a run that ends at a bad row needs
// them to go on once it is mended, so where rows are bad, findings() come behind them. All on a
// thread of its own, behind the opening of a low priority where there is a cache.
//
// Use: before and beside training; wait() says whether it is done, findings() what it found.
// Memory: the files are mapped and offsets are as JsonlFile keeps them: flat.
// Threads: one uses it. No LibTorch.
class RowScan {
 public:
  struct Options {
    std::vector<Source> train;
    std::vector<Source> eval;
    RowCheck check = nullptr;
    std::filesystem::path cache;  // as JsonlFile; empty: no hashes are kept
  };
  // Begins, and waits for nothing.
  explicit RowScan(const Options& options);
  // Ends it behind the row that it is at, or the file that it opens; what is hashed then is not
  // kept.
  ~RowScan();
  RowScan(const RowScan&) = delete;
  RowScan& operator=(const RowScan&) = delete;

  // True if all rows have been looked at; waits for that at most so long.
  bool wait(Duration limit) const;
  // Waits until they have been. Throws what ended the look: errors of expand_sources and JsonlFile,
  // kCorrupt for a file that was changed meanwhile.
  const RowFindings& findings() const;
  // So far, of num_rows(), which are those of the files opened so far.
  int64_t num_looked_at() const;
  int64_t num_rows() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::data
