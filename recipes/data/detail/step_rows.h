// The rows of one rank's micro-batches, step after step: what the batch streams have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/data/detail/item_cache.h"
#include "recipes/data/detail/pack_sequence.h"
#include "recipes/data/detail/prefetcher.h"
#include "recipes/data/step_stream.h"

namespace retort::data::detail {

class StepRows {
 public:
  // `options` must be valid. kInvalidArgument for a cursor with a negative number. Reads nothing
  // yet.
  StepRows(std::shared_ptr<RowCosts> costs, const BatchOptions& options, Layout layout,
           const Cursor& start);
  struct Step {
    // exactly options.micro_batches_at(the step)
    std::vector<std::vector<RowPart>> micro_batches;
    Cursor after;
    double epoch = 0;
  };
  Step next();
  int64_t steps_per_epoch();

 private:
  PackSequence& packs();

  std::shared_ptr<RowCosts> costs_;
  BatchOptions options_;
  Layout layout_;
  Cursor pending_;
  std::optional<PackSequence> sequence_;
  int64_t total_steps_ = 0;
  int64_t steps_of_epoch_ = -1;  // not counted yet
};

// The item that a stream makes of a row that is not cut, and of a part of one.
template <class Set, class Item>
Item item_of(ItemCache<Set, Item>& items, const RowPart& part) {
  RETORT_CHECK(part.is_whole()) << "row " << part.row << " was cut";
  return items.item(part.row);
}
inline Sample item_of(SampleCache& items, const RowPart& part) {
  Sample whole = items.item(part.row);
  return part.is_whole() ? whole : part_of(whole, part.begin, part.end);
}

// The items of a rank's micro-batches.
template <class Item>
struct StepItems {
  std::vector<std::vector<Item>> micro_batches;
  Cursor after;
  double epoch = 0;
};

// Returns the items of the next step, which `items` makes of its rows.
template <class Item, class Set>
StepItems<Item> next_items(StepRows& rows, ItemCache<Set, Item>& items) {
  const StepRows::Step next = rows.next();
  StepItems<Item> step{{}, next.after, next.epoch};
  for (const std::vector<RowPart>& mine : next.micro_batches) {
    std::vector<Item>& of_batch = step.micro_batches.emplace_back();
    of_batch.reserve(mine.size());
    for (const RowPart& part : mine)
      of_batch.push_back(item_of(items, part));
  }
  return step;
}

// The steps of a stream: its items are made one step ahead, and its micro-batches of them when the
// step is taken.
template <class MicroBatch, class Item>
class StepsAhead : public StepStream<MicroBatch>::Source {
 public:
  using Step = typename StepStream<MicroBatch>::Step;
  // `make_items` makes those of the next step, on another thread; `make_batch` may use LibTorch.
  StepsAhead(StepRows rows, std::function<StepItems<Item>(StepRows& rows)> make_items,
             std::function<MicroBatch(std::vector<Item> items)> make_batch)
      : rows_(std::move(rows)),
        make_batch_(std::move(make_batch)),
        ahead_([this, make_items = std::move(make_items)] { return make_items(rows_); }) {}

  Step next() override {
    StepItems<Item> items = ahead_.next();
    Step step{{}, items.after, items.epoch, ahead_.waited()};
    for (std::vector<Item>& mine : items.micro_batches)
      step.micro_batches.push_back(make_batch_(std::move(mine)));
    return step;
  }

  int64_t steps_per_epoch() override {
    // The rows belong to the thread that makes the next step until it is done with it.
    ahead_.settle();
    return rows_.steps_per_epoch();
  }

 private:
  StepRows rows_;
  const std::function<MicroBatch(std::vector<Item> items)> make_batch_;
  Prefetcher<StepItems<Item>> ahead_;  // destroyed first: its thread uses rows_
};

// The same for items that a cache has of whole rows or their parts.
template <class MicroBatch, class Set, class Item>
std::unique_ptr<typename StepStream<MicroBatch>::Source> steps_of_rows(
    StepRows rows, std::shared_ptr<ItemCache<Set, Item>> items,
    std::type_identity_t<std::function<MicroBatch(std::vector<Item> items)>> make_batch) {
  return std::make_unique<StepsAhead<MicroBatch, Item>>(
      std::move(rows), [items](StepRows& next) { return next_items(next, *items); },
      std::move(make_batch));
}

// The options that StepRows is given for rows that are always laid end to end, each a pack of its
// own: of pairs and of completions. `what` names them; `sequences`: how many of the data set's
// max_length make a row. kInvalidArgument for packing: false, and for a max_length of the batches'
// own.
BatchOptions end_to_end(const BatchOptions& options, int64_t max_length, const std::string& what,
                        int64_t sequences);

// Evaluation: the usable rows of the set in file order, number i of them on rank i mod dp_size,
// with `budget` tokens (0: options.rows_per_micro_batch items) in a micro-batch. Every rank gets
// the same number of micro-batches.
template <class Item, class Set>
std::vector<std::vector<Item>> eval_items(const Set& set, const BatchOptions& options,
                                          int64_t budget) {
  // Every rank follows what all of them get, and keeps its own: so all know the number of
  // micro-batches without a message.
  struct Rank {
    int64_t batches = 0;  // so far
    int64_t items = 0;    // in the last one
    int64_t tokens = 0;   // likewise
  };
  std::vector<Rank> ranks(static_cast<size_t>(options.dp_size));
  std::vector<std::vector<Item>> mine;
  int64_t number = 0;
  for (int64_t row = 0; row < set.size(); ++row) {
    std::optional<Item> item = set.get(row);
    if (!item) continue;
    const int64_t owner = number % options.dp_size;
    ++number;
    Rank& rank = ranks[static_cast<size_t>(owner)];

    // A micro-batch is full when the next item does not fit.
    const bool full = budget > 0 ? rank.tokens + tokens_of(*item) > budget
                                 : rank.items == options.rows_per_micro_batch;
    if (rank.batches == 0 || full) rank = {rank.batches + 1, 0, 0};
    ++rank.items;
    rank.tokens += tokens_of(*item);

    if (owner != options.dp_rank) continue;
    mine.resize(static_cast<size_t>(rank.batches));
    mine.back().push_back(std::move(*item));
  }

  // A rank gets empty micro-batches where another one has more, because the collectives of an
  // evaluation are the same on all.
  int64_t batches = 0;
  for (const Rank& rank : ranks)
    batches = std::max(batches, rank.batches);
  mine.resize(static_cast<size_t>(batches));
  return mine;
}

}  // namespace retort::data::detail
