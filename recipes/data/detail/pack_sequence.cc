#include "recipes/data/detail/pack_sequence.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/random.h"
#include "recipes/data/detail/packing.h"

namespace retort::data::detail {
namespace {

constexpr uint64_t kPackOrder = 0x7061636b73;  // keeps the order of packs apart from the order of rows

std::vector<SourceShape> shapes(const Dataset& dataset) {
  std::vector<SourceShape> sources;
  for (int64_t i = 0; i < dataset.num_sources(); ++i) sources.push_back({dataset.source_size(i), dataset.source_weight(i)});
  return sources;
}

}  // namespace

PackSequence::PackSequence(std::shared_ptr<SampleCache> samples, const BatchOptions& options, int64_t epoch)
    : samples_(std::move(samples)),
      options_(options),
      epoch_(epoch),
      order_(shapes(samples_->dataset()), options.seed, epoch, options.shuffle),
      num_windows_((order_.size() + kWindowSamples - 1) / kWindowSamples) {}

void PackSequence::seek(const BatchCursor& cursor) {
  RETORT_CHECK(cursor.epoch == epoch_);
  if (cursor.packs_before_window <= cursor.packs_consumed && cursor.window < num_windows_) {
    window_ = cursor.window;
    packs_before_window_ = cursor.packs_before_window;
    loaded_ = false;
  }
  while (peek() && consumed() < cursor.packs_consumed)
    at_ = std::min(packs_.size(), static_cast<size_t>(cursor.packs_consumed - packs_before_window_));
  if (consumed() != cursor.packs_consumed)
    throw Error(ErrorCode::kMismatch, "the saved position lies beyond the end of epoch " + std::to_string(epoch_) + " (" +
                                          std::to_string(consumed()) + " packs); was the data or max_length changed?")
        .with("packs_consumed", cursor.packs_consumed);
}

const Pack* PackSequence::peek() {
  if (!loaded_) load_window();
  while (at_ == packs_.size())
    if (!next_window()) return nullptr;
  return &packs_[at_];
}

void PackSequence::advance() {
  RETORT_CHECK(at_ < packs_.size());
  ++at_;
}

double PackSequence::fraction() const {
  const int64_t begin = window_ * kWindowSamples, size = std::min(kWindowSamples, order_.size() - begin);
  const double part = packs_.empty() ? 1.0 : static_cast<double>(at_) / static_cast<double>(packs_.size());
  return (static_cast<double>(begin) + part * static_cast<double>(size)) / static_cast<double>(order_.size());
}

bool PackSequence::next_window() {
  if (window_ + 1 >= num_windows_) return false;
  packs_before_window_ += static_cast<int64_t>(packs_.size());
  ++window_;
  load_window();
  return true;
}

void PackSequence::load_window() {
  const int64_t begin = window_ * kWindowSamples, end = std::min(begin + kWindowSamples, order_.size());
  packs_.clear();
  at_ = 0;
  loaded_ = false;  // stays so if a sample throws: the next peek() tries again
  std::vector<int64_t> rows, lengths;
  for (int64_t place = begin; place < end; ++place) {
    const int64_t row = order_.row(place), length = samples_->length(row);
    if (length == 0) continue;
    if (length > options_.max_length)
      throw Error(ErrorCode::kInvalidArgument, samples_->sample(row).origin + ": the sample has " + std::to_string(length) +
                                                   " tokens, more than max_length " + std::to_string(options_.max_length) +
                                                   " of the batches");
    rows.push_back(row);
    lengths.push_back(length);
  }
  loaded_ = true;
  if (!options_.packing) {
    for (size_t i = 0; i < rows.size(); ++i) packs_.push_back({{rows[i]}, lengths[i]});
    return;
  }
  const auto bins = pack_best_fit(lengths, options_.max_length);
  if (bins.empty()) return;
  const auto window = static_cast<uint64_t>(window_), epoch = static_cast<uint64_t>(epoch_);
  const Permutation shuffled(bins.size(), random_bits(options_.seed, kPackOrder, window), epoch);
  for (size_t i = 0; i < bins.size(); ++i) {
    Pack pack;
    for (const int64_t member : bins[options_.shuffle ? shuffled(i) : i]) {
      pack.rows.push_back(rows[static_cast<size_t>(member)]);
      pack.tokens += lengths[static_cast<size_t>(member)];
    }
    packs_.push_back(std::move(pack));
  }
}

}  // namespace retort::data::detail
