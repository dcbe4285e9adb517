#include "recipes/data/batches.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/step_rows.h"

namespace retort::data {
namespace {

BatchOptions checked(const BatchOptions& options) {
  options.validate();
  return options;
}

}  // namespace

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

struct BatchStream::Impl {
  Impl(std::shared_ptr<const Dataset> dataset, const BatchOptions& options, const Cursor& start)
      : samples(std::make_shared<detail::SampleCache>(std::move(dataset), detail::kItemCacheBytes)),
        rows(samples, checked(options),
             options.packing ? detail::Layout::kPacked : detail::Layout::kSingle, start) {}

  std::shared_ptr<detail::SampleCache> samples;
  detail::StepRows rows;
};

BatchStream::BatchStream(std::shared_ptr<const Dataset> dataset, BatchOptions options, Cursor start)
    : impl_(std::make_unique<Impl>(std::move(dataset), options, start)) {}
BatchStream::~BatchStream() = default;

BatchStream::Step BatchStream::next() {
  return detail::next_step<Step>(impl_->rows, *impl_->samples, make_micro_batch);
}

int64_t BatchStream::steps_per_epoch() { return impl_->rows.steps_per_epoch(); }

std::vector<MicroBatch> eval_batches(const Dataset& dataset, const BatchOptions& options) {
  options.validate();
  const int64_t budget = options.tokens_per_micro_batch > 0 ? options.tokens_per_micro_batch
                         : options.packing ? options.rows_per_micro_batch * options.max_length
                                           : 0;
  std::vector<MicroBatch> result;
  for (auto& samples : detail::eval_items<Sample>(dataset, options, budget))
    result.push_back(make_micro_batch(std::move(samples)));
  return result;
}

}  // namespace retort::data
