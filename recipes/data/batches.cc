#include "recipes/data/batches.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "recipes/data/detail/pack_sequence.h"
#include "recipes/data/detail/sample_cache.h"

namespace retort::data {
namespace {

using detail::Pack;
using detail::PackSequence;
using detail::SampleCache;

constexpr int64_t kCacheBytes = int64_t{256} << 20;

// Which pack of a global batch goes where. The same on every rank.
class Dealer {
 public:
  explicit Dealer(const BatchOptions& options)
      : options_(options), tokens_(static_cast<size_t>(options.micro_batches * options.dp_size), 0) {}

  bool has_room(const Pack& pack) const {
    if (options_.tokens_per_micro_batch > 0) return tokens_[slot()] + pack.tokens <= options_.tokens_per_micro_batch;
    return dealt_ < options_.rows_per_micro_batch * options_.micro_batches * options_.dp_size;
  }
  int64_t rank() const { return dealt_ % options_.dp_size; }
  int64_t micro_batch() const {
    if (options_.tokens_per_micro_batch > 0) return static_cast<int64_t>(slot()) / options_.dp_size;
    return dealt_ / options_.dp_size / options_.rows_per_micro_batch;
  }
  void deal(const Pack& pack) {
    tokens_[slot()] += pack.tokens;
    ++dealt_;
  }
  int64_t dealt() const { return dealt_; }

 private:
  size_t slot() const { return static_cast<size_t>(dealt_) % tokens_.size(); }
  const BatchOptions& options_;
  std::vector<int64_t> tokens_;  // dealt to each slot
  int64_t dealt_ = 0;
};

}  // namespace

void BatchOptions::validate() const {
  const auto positive = [](std::string_view name, int64_t value) {
    if (value < 1)
      throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is " + std::to_string(value) + "; expected at least 1");
  };
  positive("per_device_train_batch_size", rows_per_micro_batch);
  positive("gradient_accumulation_steps", micro_batches);
  positive("data.max_length", max_length);
  positive("dp", dp_size);
  if (dp_rank < 0 || dp_rank >= dp_size)
    throw Error(ErrorCode::kInvalidArgument, "dp rank " + std::to_string(dp_rank) + " of " + std::to_string(dp_size));
  if (tokens_per_micro_batch != 0 && tokens_per_micro_batch < max_length)
    throw Error(ErrorCode::kInvalidArgument, "tokens_per_batch is " + std::to_string(tokens_per_micro_batch) +
                                                 "; expected at least data.max_length (" + std::to_string(max_length) +
                                                 "), or a full row would not fit");
}

struct BatchStream::Impl {
  Impl(std::shared_ptr<const Dataset> dataset, BatchOptions given, const BatchCursor& start)
      : options(given), samples(std::make_shared<SampleCache>(std::move(dataset), kCacheBytes)) {
    options.validate();
    if (start.epoch < 0 || start.packs_consumed < 0 || start.total_steps < 0 || start.window < 0 || start.packs_before_window < 0)
      throw Error(ErrorCode::kInvalidArgument, "a batch cursor holds a negative number; expected one from Step::after");
    total_steps = start.total_steps;
    pending = start;
  }

  // The sequence, moved to where the caller asked on first use; so that making a stream reads nothing.
  PackSequence& packs() {
    if (!sequence) {
      sequence.emplace(samples, options, pending.epoch);
      sequence->seek(pending);
    }
    if (!sequence->peek()) {
      if (sequence->consumed() == 0) {
        const std::string why = samples->dataset().first_skip_reason();
        throw Error(ErrorCode::kInvalidArgument, "no usable sample in the data: all " +
                                                     std::to_string(samples->dataset().size()) +
                                                     " rows were skipped; the first: " + (why.empty() ? "(unknown)" : why));
      }
      sequence.emplace(samples, options, sequence->epoch() + 1);
      RETORT_CHECK(sequence->peek() != nullptr) << "an epoch of good rows has no pack";
    }
    return *sequence;
  }

  BatchOptions options;
  std::shared_ptr<SampleCache> samples;
  BatchCursor pending;
  std::optional<PackSequence> sequence;
  int64_t total_steps = 0;
  int64_t steps_of_epoch = -1;
};

BatchStream::BatchStream(std::shared_ptr<const Dataset> dataset, BatchOptions options, BatchCursor start)
    : impl_(std::make_unique<Impl>(std::move(dataset), options, start)) {}
BatchStream::~BatchStream() = default;

BatchStream::Step BatchStream::next() {
  PackSequence& packs = impl_->packs();
  const BatchOptions& options = impl_->options;
  std::vector<std::vector<int64_t>> mine(static_cast<size_t>(options.micro_batches));
  Dealer dealer(options);
  for (const Pack* pack = packs.peek(); pack && dealer.has_room(*pack); pack = packs.peek()) {
    if (dealer.rank() == options.dp_rank) {
      auto& rows = mine[static_cast<size_t>(dealer.micro_batch())];
      rows.insert(rows.end(), pack->rows.begin(), pack->rows.end());
    }
    dealer.deal(*pack);
    packs.advance();
  }
  RETORT_CHECK(dealer.dealt() > 0);
  Step step;
  for (const auto& rows : mine) {
    std::vector<Sample> samples;
    samples.reserve(rows.size());
    for (const int64_t row : rows) samples.push_back(impl_->samples->sample(row));
    step.micro_batches.push_back(make_micro_batch(std::move(samples)));
  }
  ++impl_->total_steps;
  const bool more = packs.peek() != nullptr;
  step.epoch = static_cast<double>(packs.epoch()) + (more ? packs.fraction() : 1.0);
  if (more)
    step.after = {packs.epoch(), packs.consumed(), impl_->total_steps, packs.window(), packs.packs_before_window()};
  else
    step.after = {packs.epoch() + 1, 0, impl_->total_steps, 0, 0};
  return step;
}

int64_t BatchStream::steps_per_epoch() {
  if (impl_->steps_of_epoch >= 0) return impl_->steps_of_epoch;
  PackSequence packs(impl_->samples, impl_->options, 0);
  int64_t steps = 0;
  while (packs.peek()) {
    Dealer dealer(impl_->options);
    for (const Pack* pack = packs.peek(); pack && dealer.has_room(*pack); pack = packs.peek()) {
      dealer.deal(*pack);
      packs.advance();
    }
    RETORT_CHECK(dealer.dealt() > 0);
    ++steps;
  }
  return impl_->steps_of_epoch = steps;
}

std::vector<MicroBatch> eval_batches(const Dataset& dataset, const BatchOptions& options) {
  options.validate();
  const int64_t budget = options.tokens_per_micro_batch > 0 ? options.tokens_per_micro_batch
                         : options.packing                  ? options.rows_per_micro_batch * options.max_length
                                                            : 0;
  struct Rank {
    int64_t batches = 0, samples = 0, tokens = 0;  // batches so far, and what is in the last one
  };
  std::vector<Rank> ranks(static_cast<size_t>(options.dp_size));
  std::vector<std::vector<Sample>> mine;
  int64_t number = 0;
  for (int64_t row = 0; row < dataset.size(); ++row) {
    std::optional<Sample> sample = dataset.get(row);
    if (!sample) continue;
    const int64_t owner = number++ % options.dp_size;
    Rank& rank = ranks[static_cast<size_t>(owner)];
    const auto length = static_cast<int64_t>(sample->input_ids.size());
    const bool full = budget > 0 ? rank.tokens + length > budget : rank.samples == options.rows_per_micro_batch;
    if (rank.batches == 0 || full) rank = {rank.batches + 1, 0, 0};
    ++rank.samples;
    rank.tokens += length;
    if (owner != options.dp_rank) continue;
    mine.resize(static_cast<size_t>(rank.batches));
    mine.back().push_back(std::move(*sample));
  }
  int64_t batches = 0;
  for (const Rank& rank : ranks) batches = std::max(batches, rank.batches);
  mine.resize(static_cast<size_t>(batches));
  std::vector<MicroBatch> result;
  for (auto& samples : mine) result.push_back(make_micro_batch(std::move(samples)));
  return result;
}

}  // namespace retort::data
