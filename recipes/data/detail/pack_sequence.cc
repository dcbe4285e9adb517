#include "recipes/data/detail/pack_sequence.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "recipes/data/detail/dealer.h"
#include "recipes/data/detail/packing.h"

namespace retort::data::detail {
namespace {

// Keeps the draws for the order of packs apart from those for the order of rows.
constexpr uint64_t kPackOrder = 0x7061636b73;

}  // namespace

PackSequence::PackSequence(std::shared_ptr<RowCosts> costs, const BatchOptions& options,
                           Layout layout, int64_t epoch)
    : costs_(std::move(costs)),
      options_(options),
      layout_(layout),
      epoch_(epoch),
      order_(source_shapes(costs_->rows()), options.seed, epoch, options.shuffle),
      num_windows_((order_.size() + kWindowSamples - 1) / kWindowSamples) {}

void PackSequence::seek(const Cursor& cursor) {
  RETORT_CHECK(cursor.epoch == epoch_);
  if (cursor.consumed_before_window <= cursor.consumed && cursor.window < num_windows_) {
    window_ = cursor.window;
    packs_before_window_ = cursor.consumed_before_window;
    loaded_ = false;
  }

  // A cursor whose window cannot be is found from the beginning, window by window; any other only
  // goes on to its pack.
  while (peek() && consumed() < cursor.consumed)
    at_ = std::min(packs_.size(), static_cast<size_t>(cursor.consumed - packs_before_window_));
  if (consumed() != cursor.consumed)
    throw Error(ErrorCode::kMismatch,
                "the saved position lies beyond the end of epoch " + std::to_string(epoch_) + " (" +
                    std::to_string(consumed()) + " packs); was the data or max_length changed?")
        .with("consumed", cursor.consumed);
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
  const int64_t begin = window_ * kWindowSamples;
  const int64_t size = std::min(kWindowSamples, order_.size() - begin);
  const double part =
      packs_.empty() ? 1.0 : static_cast<double>(at_) / static_cast<double>(packs_.size());
  return (static_cast<double>(begin) + part * static_cast<double>(size)) /
         static_cast<double>(order_.size());
}

bool PackSequence::next_window() {
  if (window_ + 1 >= num_windows_) return false;
  packs_before_window_ += static_cast<int64_t>(packs_.size());
  ++window_;
  load_window();
  return true;
}

void PackSequence::load_window() {
  packs_.clear();
  at_ = 0;
  loaded_ = false;  // stays so if a sample throws: the next peek() tries again
  std::vector<Pack> rows = singles();
  loaded_ = true;
  switch (layout_) {
    case Layout::kSingle: packs_ = std::move(rows); break;
    case Layout::kPacked: packs_ = packed(rows); break;
    case Layout::kWrapped: packs_ = wrapped(rows); break;
    case Layout::kBuckets: packs_ = bucketed(std::move(rows)); break;
  }
}

std::vector<Pack> PackSequence::singles() const {
  const int64_t begin = window_ * kWindowSamples;
  const int64_t end = std::min(begin + kWindowSamples, order_.size());
  std::vector<Pack> packs;
  for (int64_t place = begin; place < end; ++place) {
    const int64_t row = order_.row(place);
    const int64_t tokens = costs_->tokens(row);
    // A bad row that is skipped has 0 tokens.
    if (tokens == 0) continue;
    if (tokens > options_.max_length && layout_ != Layout::kWrapped)
      throw Error(ErrorCode::kInvalidArgument,
                  costs_->rows().origin(row) + ": the sample has " + std::to_string(tokens) +
                      " tokens, more than max_length " + std::to_string(options_.max_length) +
                      " of the batches");
    packs.push_back({{{.row = row}}, tokens});
  }
  return packs;
}

Permutation PackSequence::window_order(size_t size) const {
  const auto window = static_cast<uint64_t>(window_);
  const auto epoch = static_cast<uint64_t>(epoch_);
  return Permutation(size, random_bits(options_.seed, kPackOrder, window), epoch);
}

std::vector<Pack> PackSequence::packed(const std::vector<Pack>& singles) const {
  std::vector<int64_t> lengths;
  for (const Pack& single : singles)
    lengths.push_back(single.tokens);
  const auto bins = pack_best_fit(lengths, options_.max_length);

  std::vector<Pack> packs;
  for (const auto& bin : bins) {
    Pack pack;
    for (const int64_t member : bin) {
      const Pack& single = singles[static_cast<size_t>(member)];
      pack.rows.push_back(single.rows.front());
      pack.tokens += single.tokens;
    }
    packs.push_back(std::move(pack));
  }
  return in_pack_order(std::move(packs));
}

// The order of packs is shuffled; inside a pack the samples stay as they are.
std::vector<Pack> PackSequence::in_pack_order(std::vector<Pack> packs) const {
  if (packs.empty() || !options_.shuffle) return packs;
  const Permutation shuffled = window_order(packs.size());
  std::vector<Pack> ordered;
  for (size_t i = 0; i < packs.size(); ++i)
    ordered.push_back(std::move(packs[static_cast<size_t>(shuffled(i))]));
  return ordered;
}

std::vector<Pack> PackSequence::wrapped(const std::vector<Pack>& singles) const {
  std::vector<Pack> packs;
  for (const Pack& single : singles) {
    // A row first fills the last pack, then whole packs of its own, and begins another with the
    // rest.
    for (int64_t begin = 0; begin < single.tokens;) {
      if (packs.empty() || packs.back().tokens == options_.max_length) packs.emplace_back();
      Pack& pack = packs.back();
      const int64_t room = options_.max_length - pack.tokens;
      const int64_t end = std::min(single.tokens, begin + room);
      pack.rows.push_back({.row = single.rows.front().row, .begin = begin, .end = end});
      pack.tokens += end - begin;
      begin = end;
    }
  }
  // A long prompt fills packs by itself, from which nothing is learned. A batch might have no
  // others, so they are left out.
  std::erase_if(packs, [&](const Pack& pack) { return !has_target(pack); });
  return in_pack_order(std::move(packs));
}

bool PackSequence::has_target(const Pack& pack) const {
  return std::ranges::any_of(pack.rows, [&](const RowPart& part) {
    const bool is_whole = part.begin == 0 && part.end == costs_->tokens(part.row);
    return is_whole || costs_->has_target(part.row, part.begin, part.end);
  });
}

std::vector<Pack> PackSequence::bucketed(std::vector<Pack> singles) const {
  // Global batches are formed of like lengths, each as large as a dealer has room for.
  std::stable_sort(singles.begin(), singles.end(),
                   [](const Pack& a, const Pack& b) { return a.tokens < b.tokens; });
  std::vector<std::pair<size_t, size_t>> batches;  // [first, last)
  for (size_t first = 0, last = 0; first < singles.size(); first = last) {
    Dealer dealer(options_);
    for (; last < singles.size() && dealer.has_room(singles[last]); ++last)
      dealer.deal(singles[last]);
    RETORT_CHECK(last > first) << "a pair does not fit into a micro-batch";
    singles[last - 1].ends_batch = true;
    batches.emplace_back(first, last);
  }

  // The order of batches is shuffled; inside a batch the pairs stay as they are.
  std::vector<Pack> packs;
  if (batches.empty()) return packs;
  const Permutation shuffled = window_order(batches.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto [first, last] = batches[options_.shuffle ? shuffled(i) : i];
    for (size_t at = first; at < last; ++at)
      packs.push_back(std::move(singles[at]));
  }
  return packs;
}

}  // namespace retort::data::detail
