// The position of a stream of training data, which a checkpoint stores to continue it.
#pragma once

#include <cstdint>

namespace retort::data {

// The streams count in units of their own, and each says in its header which:
//
//   stream              consumed                                  total
//   ------------------  ----------------------------------------  -----------------------------
//   BatchStream         packs of the epoch, over all ranks        optimizer steps since the start
//   PairBatchStream     pairs of the epoch, over all ranks        the same
//   UnpairedBatchStream rows of the epoch, over all ranks         the same
//   IndexStream         places of the epoch's order, also of bad  usable rows since the start
//                       rows
struct Cursor {
  int64_t epoch = 0;
  int64_t consumed = 0;
  int64_t total = 0;
  // Batch streams alone: where the search for unit `consumed` may begin, so that resuming does not
  // read the epoch from its start: a window at or before it, and the units before that window.
  // Zeros are right too, and slower.
  int64_t window = 0;
  int64_t consumed_before_window = 0;

  bool valid() const {
    return epoch >= 0 && consumed >= 0 && total >= 0 && window >= 0 && consumed_before_window >= 0;
  }
};

}  // namespace retort::data
