#include "engines/vllm/prompt_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/contract/scored_tokens.h"
#include "engines/wire/log_prob.h"

namespace retort::engines::vllm {

PromptRows::PromptRows(ScoreRequest request)
    : request_(std::move(request)), num_tokens_(num_scored_tokens(request_)) {
  const auto num_rows = static_cast<int64_t>(request_.positions.size());
  const auto k = static_cast<size_t>(request_.top_k);
  scored_.given.reserve(request_.positions.size());
  entries_.reserve(k + 1);
  if (k == 0) return;

  sorted_ids_.reserve(k + 1);
  top_ids_.resize(k);
  top_log_probs_.resize(k);
  scored_.ids = at::empty({num_rows, request_.top_k}, at::kInt);
  scored_.log_probs = at::empty({num_rows, request_.top_k}, at::kFloat);
}

// Row i belongs to position i - 1, which is the one that predicts token i.
bool PromptRows::wanted() const {
  return next_ < request_.positions.size() && request_.positions[next_] == row_ - 1;
}

void PromptRows::null_row() {
  if (row_ != 0) mismatch("is null; only the first token has no log-probability");
  ++row_;
}

void PromptRows::begin_row() {
  if (row_ == 0) mismatch("is not null, but nothing stands before the first token");
  if (row_ >= num_tokens_)
    mismatch("is one more than the " + std::to_string(num_tokens_) + " tokens that were sent");
  entries_.clear();
}

void PromptRows::begin_entry(std::string_view id) {
  if (!wanted()) return;
  if (entries_.size() > static_cast<size_t>(request_.top_k))
    mismatch("has more than the " + std::to_string(request_.top_k) +
             " entries that were asked for and the token itself");

  Entry entry;
  const char* const end = id.data() + id.size();
  const auto [stopped, error] = std::from_chars(id.data(), end, entry.id);
  if (error != std::errc() || stopped != end || entry.id < 0)
    corrupt("the key " + json_quote(id) + " is no token id");
  entries_.push_back(entry);
}

void PromptRows::log_prob(double value) {
  if (!wanted()) return;
  entries_.back().log_prob =
      checked_log_prob(value, place("logprob of " + std::to_string(entries_.back().id)));
  entries_.back().has_log_prob = true;
}

void PromptRows::rank(double value) {
  if (!wanted()) return;
  const bool inside = value >= 1 && value <= INT32_MAX;
  const auto whole = inside ? static_cast<int64_t>(value) : 0;
  if (!inside || static_cast<double>(whole) != value)
    corrupt("rank " + json_number(value) + "; ranks are 1, 2, ...");
  entries_.back().rank = whole;
}

void PromptRows::end_entry() {
  if (!wanted()) return;
  const Entry& entry = entries_.back();
  if (!entry.has_log_prob) mismatch("token " + std::to_string(entry.id) + " has no logprob");
  if (entry.rank == 0) mismatch("token " + std::to_string(entry.id) + " has no rank");
}

void PromptRows::end_row() {
  if (wanted()) {
    const int32_t id = request_.token_ids[static_cast<size_t>(row_)];
    const auto given = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.id == id; });
    if (given == entries_.end())
      mismatch("nothing is said of token " + std::to_string(id) + ", which was sent there");
    if (entries_.size() < static_cast<size_t>(std::max<int64_t>(request_.top_k, 1)))
      mismatch("has " + std::to_string(entries_.size()) + " entries instead of " +
               std::to_string(request_.top_k));

    scored_.given.push_back(given->log_prob);
    if (request_.top_k > 0) keep_top(*given);
    ++next_;
  }
  ++row_;
}

// The entries of a row come in no order, and their ranks say where they stand. The given token
// fills the place that is left if it is one of the top_k: its own rank may be larger than that
// place, because equally probable tokens share one.
void PromptRows::keep_top(const Entry& given) {
  const size_t k = top_ids_.size();
  const bool given_is_extra = entries_.size() > k;
  std::fill(top_ids_.begin(), top_ids_.end(), -1);
  const auto put = [&](size_t place, const Entry& entry) {
    top_ids_[place] = entry.id;
    top_log_probs_[place] = entry.log_prob;
  };
  for (const Entry& entry : entries_) {
    if (&entry == &given) continue;
    const auto rank = static_cast<size_t>(entry.rank);
    if (rank > k || top_ids_[rank - 1] >= 0)
      corrupt("token " + std::to_string(entry.id) + " has rank " + std::to_string(rank) +
              ", which cannot be among the first " + std::to_string(k));
    put(rank - 1, entry);
  }
  const auto free = std::find(top_ids_.begin(), top_ids_.end(), -1);
  if (!given_is_extra) put(static_cast<size_t>(free - top_ids_.begin()), given);

  // Ranks and log-probabilities state one order twice. Where they disagree, some number is not its
  // token's, and the row is of no use.
  if (!std::is_sorted(top_log_probs_.rbegin(), top_log_probs_.rend()))
    corrupt("the ranks do not follow the log-probabilities");
  if (given_is_extra && given.log_prob > top_log_probs_.back())
    corrupt("token " + std::to_string(given.id) + " is more probable than the last of the first " +
            std::to_string(k) + ", but not among them");
  // An id that stands there twice would count its probability twice. The member is sorted instead
  // of a local vector, so that no row allocates.
  sorted_ids_ = top_ids_;
  if (given_is_extra) sorted_ids_.push_back(given.id);
  std::sort(sorted_ids_.begin(), sorted_ids_.end());
  if (std::adjacent_find(sorted_ids_.begin(), sorted_ids_.end()) != sorted_ids_.end())
    corrupt("a token stands there twice");

  const auto begin = static_cast<std::ptrdiff_t>(next_ * k);
  std::copy(top_ids_.begin(), top_ids_.end(), scored_.ids.data_ptr<int32_t>() + begin);
  std::copy(top_log_probs_.begin(), top_log_probs_.end(),
            scored_.log_probs.data_ptr<float>() + begin);
}

Scored PromptRows::take() {
  if (row_ != num_tokens_)
    throw Error(ErrorCode::kMismatch, "prompt_logprobs: has " + std::to_string(row_) +
                                          " entries for " + std::to_string(num_tokens_) +
                                          " tokens");
  return std::move(scored_);
}

std::string PromptRows::place(const std::string& what) const {
  return "prompt_logprobs[" + std::to_string(row_) + "]: " + what;
}
void PromptRows::corrupt(const std::string& what) const {
  throw Error(ErrorCode::kCorrupt, place(what));
}
void PromptRows::mismatch(const std::string& what) const {
  throw Error(ErrorCode::kMismatch, place(what));
}

}  // namespace retort::engines::vllm
