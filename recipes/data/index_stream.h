// The global order of rows over epochs, as indices: for recipes that generate from prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "recipes/data/cursor.h"
#include "recipes/data/row_set.h"

namespace retort::data {

struct IndexOptions {
  uint64_t seed = 42;
  bool shuffle = true;
};

// Endless stream of row numbers in BatchStream's order: a counter-based permutation of (seed,
// epoch) in which sources count by their weights; bad rows are skipped where the set skips them.
// Every rank gets the same rows and takes its share of them (row i of a step on rank i mod dp,
// say). One thread; nothing depends on time.
class IndexStream {
 public:
  // kInvalidArgument for a cursor with a negative number.
  IndexStream(std::shared_ptr<const RowSet> rows, const IndexOptions& options,
              const Cursor& start = {});
  ~IndexStream();
  struct Step {
    std::vector<int64_t> rows;
    Cursor after;      // store this once the step has been consumed
    double epoch = 0;  // fractional, after this step
  };
  // The next `count` (at least 1) usable rows. A step does not reach into the next epoch: the last
  // one of an epoch may be shorter, never empty. kInvalidArgument for an epoch without a usable
  // row, kMismatch for a cursor beyond the end of its epoch.
  Step next(int64_t count);
  // Usable rows of epoch 0; reads every row once where bad ones are skipped. With a fractional
  // weight later epochs may differ.
  int64_t rows_per_epoch() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::data
