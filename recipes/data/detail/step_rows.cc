#include "recipes/data/detail/step_rows.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/dealer.h"

namespace retort::data::detail {

StepRows::StepRows(std::shared_ptr<RowCosts> costs, const BatchOptions& options, Layout layout,
                   const Cursor& start)
    : costs_(std::move(costs)),
      options_(options),
      layout_(layout),
      pending_(start),
      total_steps_(start.total) {
  if (!start.valid())
    throw Error(ErrorCode::kInvalidArgument,
                "a batch cursor holds a negative number; expected one from Step::after");
}

// Returns the packs, which stand at the next one to be dealt. They are made here, on first use, so
// that making a stream reads nothing.
PackSequence& StepRows::packs() {
  if (!sequence_) {
    sequence_.emplace(costs_, options_, layout_, pending_.epoch);
    sequence_->seek(pending_);
  }

  // At the end of an epoch the next one begins. An epoch without any pack means that there is
  // nothing to train on.
  if (!sequence_->peek()) {
    if (sequence_->consumed() == 0) {
      const std::string why = costs_->rows().first_skip_reason();
      throw Error(ErrorCode::kInvalidArgument,
                  "no usable sample in the data: all " + std::to_string(costs_->rows().size()) +
                      " rows were skipped; the first: " + (why.empty() ? "(unknown)" : why));
    }
    sequence_.emplace(costs_, options_, layout_, sequence_->epoch() + 1);
    RETORT_CHECK(sequence_->peek() != nullptr) << "an epoch of good rows has no pack";
  }
  return *sequence_;
}

StepRows::Step StepRows::next() {
  // Every rank deals the whole global batch and keeps its own share, so that all agree on it
  // without a message.
  PackSequence& packs = this->packs();
  Step step;
  BatchOptions now = options_;
  now.micro_batches = options_.micro_batches_at(total_steps_);
  step.micro_batches.resize(static_cast<size_t>(now.micro_batches));
  Dealer dealer(now);
  for (const Pack* pack = packs.peek(); pack && dealer.has_room(*pack); pack = packs.peek()) {
    if (dealer.rank() == options_.dp_rank) {
      auto& rows = step.micro_batches[static_cast<size_t>(dealer.micro_batch())];
      rows.insert(rows.end(), pack->rows.begin(), pack->rows.end());
    }
    dealer.deal(*pack);
    packs.advance();
  }
  RETORT_CHECK(dealer.dealt() > 0);

  // A cursor at the end of an epoch is written as the beginning of the next one.
  ++total_steps_;
  const bool more = packs.peek() != nullptr;
  step.epoch = static_cast<double>(packs.epoch()) + (more ? packs.fraction() : 1.0);
  if (more)
    step.after = {packs.epoch(), packs.consumed(), total_steps_, packs.window(),
                  packs.packs_before_window()};
  else
    step.after = {packs.epoch() + 1, 0, total_steps_, 0, 0};
  return step;
}

int64_t StepRows::steps_per_epoch() {
  if (steps_of_epoch_ >= 0) return steps_of_epoch_;
  // A sequence of its own is counted through, so that the stream stays where it is.
  PackSequence packs(costs_, options_, layout_, /*epoch=*/0);
  int64_t steps = 0;
  while (packs.peek()) {
    BatchOptions now = options_;
    now.micro_batches = options_.micro_batches_at(steps);
    Dealer dealer(now);
    for (const Pack* pack = packs.peek(); pack && dealer.has_room(*pack); pack = packs.peek()) {
      dealer.deal(*pack);
      packs.advance();
    }
    RETORT_CHECK(dealer.dealt() > 0);
    ++steps;
  }
  steps_of_epoch_ = steps;
  return steps;
}

BatchOptions end_to_end(const BatchOptions& options, int64_t max_length, const std::string& what,
                        int64_t sequences) {
  if (!options.packing)
    throw Error(ErrorCode::kInvalidArgument, "packing: false has no effect: " + what +
                                                 " are always laid end to end, without padding");
  if (options.max_length != BatchOptions().max_length && options.max_length != max_length)
    throw Error(ErrorCode::kInvalidArgument, "max_length of the batches is " +
                                                 std::to_string(options.max_length) + ", of the " +
                                                 what + " " + std::to_string(max_length) +
                                                 "; leave it out, that of the " + what + " holds");

  BatchOptions rows = options;
  rows.max_length = sequences * max_length;
  rows.packing = false;
  rows.validate();
  return rows;
}

}  // namespace retort::data::detail
