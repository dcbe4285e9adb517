// The global order of the rows of one epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "recipes/data/row_set.h"

namespace retort::data::detail {

struct SourceShape {
  int64_t rows = 0;
  double weight = 1;
};
std::vector<SourceShape> source_shapes(const RowSet& rows);

// A row of a source stands weight / (smallest weight) times in the epoch; the fractional part is
// one more time or not, by a draw from (seed, epoch, row). A pure function of its arguments.
// Memory: 8 bytes for each extra row of a fractional weight, else O(sources).
class EpochOrder {
 public:
  EpochOrder(const std::vector<SourceShape>& sources, uint64_t seed, int64_t epoch, bool shuffle);
  int64_t size() const { return size_; }
  int64_t row(int64_t index) const;  // global row number, source by source

 private:
  struct Segment {
    int64_t begin, end;  // places in the unshuffled epoch
    int64_t first_row, rows;
    int64_t full;  // rows * whole passes; after these come the extra rows
    std::vector<int64_t> extra;
  };
  std::vector<Segment> segments_;
  int64_t size_ = 0;
  bool shuffle_;
  Permutation permutation_;
};

}  // namespace retort::data::detail
