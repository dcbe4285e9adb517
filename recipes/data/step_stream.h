// An endless stream of optimizer steps of one rank, whatever its micro-batches hold.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "recipes/data/cursor.h"

namespace retort::data {

// The part that BatchStream, PairBatchStream and UnpairedBatchStream have in common; each says
// which rows make a step. Threads: one calls.
template <class MicroBatch>
class StepStream {
 public:
  struct Step {
    std::vector<MicroBatch> micro_batches;  // exactly BatchOptions::micro_batches_at(this step)
    Cursor after;                           // store this once the step has been consumed
    double epoch = 0;                       // fractional, after this step
    // seconds that next() waited for the rows; none of a step that no stream of rows made
    std::optional<double> waited = std::nullopt;
  };

  Step next() { return source_->next(); }
  // The steps of epoch 0; reads the length of every row once.
  int64_t steps_per_epoch() { return source_->steps_per_epoch(); }

  // The source of the steps: detail::StepsAhead.
  class Source {
   public:
    virtual ~Source() = default;
    virtual Step next() = 0;
    virtual int64_t steps_per_epoch() = 0;
  };

 protected:
  explicit StepStream(std::unique_ptr<Source> source) : source_(std::move(source)) {}

 private:
  std::unique_ptr<Source> source_;
};

}  // namespace retort::data
