// The packs of an epoch, one after the other, as every rank sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/data/detail/item_cache.h"
#include "recipes/data/detail/order.h"

namespace retort::data::detail {

// A row, or its tokens [begin, end).
struct RowPart {
  int64_t row = 0;
  int64_t begin = 0;
  int64_t end = 0;  // 0: the whole row

  bool is_whole() const { return end == 0; }
};

struct Pack {
  std::vector<RowPart> rows;
  int64_t tokens = 0;
  bool ends_batch = false;  // the global batch ends behind this pack, whatever room is left
};

enum class Layout {
  kPacked,  // rows share packs of max_length tokens
  // rows are laid end to end and cut every max_length tokens; the last pack of a window is short
  kWrapped,
  kSingle,  // each row is a pack of its own, in the global order
  // each row is a pack of its own; a window is sorted by tokens and cut into global batches, whose
  // order is shuffled
  kBuckets,
};

// A position in the packs of one epoch. Windows of kWindowSamples places of the epoch's order are
// packed one at a time, so memory is that of one window. One thread.
class PackSequence {
 public:
  // Starts at the beginning of `epoch`.
  PackSequence(std::shared_ptr<RowCosts> costs, const BatchOptions& options, Layout layout,
               int64_t epoch);
  // Moves on to the cursor's pack of this epoch; kMismatch if the epoch has fewer packs.
  void seek(const Cursor& cursor);

  const Pack* peek();  // nullptr at the end of the epoch
  void advance();      // after peek() gave a pack
  int64_t consumed() const { return packs_before_window_ + static_cast<int64_t>(at_); }
  int64_t window() const { return window_; }
  int64_t packs_before_window() const { return packs_before_window_; }
  int64_t epoch() const { return epoch_; }
  double fraction() const;  // of the epoch consumed, in [0, 1]

 private:
  void load_window();
  bool next_window();
  std::vector<Pack> singles() const;  // of the window's usable rows
  std::vector<Pack> packed(const std::vector<Pack>& singles) const;
  std::vector<Pack> wrapped(const std::vector<Pack>& singles) const;
  std::vector<Pack> in_pack_order(std::vector<Pack> packs) const;
  bool has_target(const Pack& pack) const;
  std::vector<Pack> bucketed(std::vector<Pack> singles) const;
  Permutation window_order(size_t size) const;  // of `size` things in this window

  std::shared_ptr<RowCosts> costs_;
  BatchOptions options_;
  Layout layout_;
  int64_t epoch_;
  EpochOrder order_;
  int64_t window_ = 0;
  int64_t num_windows_ = 0;
  int64_t packs_before_window_ = 0;
  bool loaded_ = false;
  std::vector<Pack> packs_;  // of the window
  size_t at_ = 0;
};

}  // namespace retort::data::detail
