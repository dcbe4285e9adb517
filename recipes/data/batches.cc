#include "recipes/data/batches.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/step_rows.h"

namespace retort::data {

int64_t used_places(const Cursor& cursor) {
  const bool begun = cursor.consumed > cursor.consumed_before_window;
  return (cursor.window + (begun ? 1 : 0)) * kWindowSamples;
}

void BatchOptions::validate() const {
  const auto positive = [](std::string_view name, int64_t value) {
    if (value < 1)
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + " is " + std::to_string(value) + "; expected at least 1");
  };
  positive("per_device_train_batch_size", rows_per_micro_batch);
  positive("gradient_accumulation_steps", micro_batches);
  if (rampup_steps < 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        "batch_size_rampup_steps is " + std::to_string(rampup_steps) + "; expected 0 or more");
  positive("data.max_length", max_length);
  positive("dp", dp_size);
  if (dp_rank < 0 || dp_rank >= dp_size)
    throw Error(ErrorCode::kInvalidArgument,
                "dp rank " + std::to_string(dp_rank) + " of " + std::to_string(dp_size));
  if (tokens_per_micro_batch != 0 && tokens_per_micro_batch < max_length)
    throw Error(ErrorCode::kInvalidArgument,
                "tokens_per_batch is " + std::to_string(tokens_per_micro_batch) +
                    "; expected at least data.max_length (" + std::to_string(max_length) +
                    "), or a full row would not fit");
}

int64_t BatchOptions::micro_batches_at(int64_t step) const {
  return step >= rampup_steps ? micro_batches : 1 + (micro_batches - 1) * step / rampup_steps;
}

namespace {

detail::Layout layout_of(const Dataset& dataset, const BatchOptions& options) {
  if (!options.packing) return detail::Layout::kSingle;
  return dataset.wraps() ? detail::Layout::kWrapped : detail::Layout::kPacked;
}

// The usable rows of a set that wraps, in parts of at most max_length tokens. It stands for the set
// where detail::eval_items deals it out.
class CutRows {
 public:
  CutRows(const Dataset& dataset, int64_t max_length) {
    for (int64_t row = 0; row < dataset.size(); ++row) {
      const std::optional<Sample> sample = dataset.get(row);
      if (!sample) continue;
      const int64_t tokens = detail::tokens_of(*sample);
      for (int64_t begin = 0; begin < tokens; begin += max_length)
        parts_.push_back(part_of(*sample, begin, std::min(tokens, begin + max_length)));
    }
  }
  int64_t size() const { return static_cast<int64_t>(parts_.size()); }
  std::optional<Sample> get(int64_t part) const { return parts_[static_cast<size_t>(part)]; }

 private:
  std::vector<Sample> parts_;
};

std::unique_ptr<BatchStream::Source> steps_of(std::shared_ptr<const Dataset> dataset,
                                              const BatchOptions& options, const Cursor& start) {
  options.validate();
  const detail::Layout layout = layout_of(*dataset, options);
  auto samples = std::make_shared<detail::SampleCache>(std::move(dataset), detail::kItemCacheBytes);
  return detail::steps_of_rows<MicroBatch>(detail::StepRows(samples, options, layout, start),
                                           samples, make_micro_batch);
}

}  // namespace

BatchStream::BatchStream(std::shared_ptr<const Dataset> dataset, BatchOptions options, Cursor start)
    : StepStream(steps_of(std::move(dataset), options, start)) {}

std::vector<MicroBatch> eval_batches(const Dataset& dataset, const BatchOptions& options) {
  options.validate();
  const int64_t budget = options.tokens_per_micro_batch > 0 ? options.tokens_per_micro_batch
                         : options.packing ? options.rows_per_micro_batch * options.max_length
                                           : 0;
  std::vector<std::vector<Sample>> dealt =
      dataset.wraps()
          ? detail::eval_items<Sample>(CutRows(dataset, options.max_length), options, budget)
          : detail::eval_items<Sample>(dataset, options, budget);
  std::vector<MicroBatch> result;
  for (std::vector<Sample>& samples : dealt)
    result.push_back(make_micro_batch(std::move(samples)));
  return result;
}

}  // namespace retort::data
