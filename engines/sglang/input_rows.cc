#include "engines/sglang/input_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/contract/scored_tokens.h"
#include "engines/wire/log_prob.h"

namespace retort::engines::sglang {
namespace {

// Two kernels may give one log-probability as numbers that are this far apart.
constexpr float kSameNumber = 1e-3f;
constexpr const char* kGiven = "input_token_logprobs";
constexpr const char* kTop = "input_top_logprobs";

static_assert(std::endian::native == std::endian::little, "SGLang's flat numbers are copied");

[[noreturn]] void other_rows(const std::string& what) { throw Error(ErrorCode::kMismatch, what); }
[[noreturn]] void bad_rows(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }

float number_of(const Entry& entry, const std::string& field) {
  if (!entry.log_prob)
    bad_rows(field +
             ": is null, which stands for NaN or infinity; the server's weights, dtype or "
             "kernels are wrong");
  return checked_log_prob(*entry.log_prob, field);
}

}  // namespace

InputRows::InputRows(ScoreRequest request, int64_t vocab_rows)
    : request_(std::move(request)),
      vocab_rows_(vocab_rows),
      first_(request_.positions.front()),
      num_rows_(num_scored_tokens(request_) - first_) {
  const auto num_wanted = static_cast<int64_t>(request_.positions.size());
  scored_.given.reserve(request_.positions.size());
  if (request_.top_k == 0) return;
  scored_.ids = at::empty({num_wanted, request_.top_k}, at::kInt);
  scored_.log_probs = at::empty({num_wanted, request_.top_k}, at::kFloat);
}

// Row i belongs to token first + i, which position first + i - 1 predicts.
bool InputRows::wanted(int64_t row) const {
  const auto& positions = request_.positions;
  return std::binary_search(positions.begin(), positions.end(),
                            static_cast<int32_t>(first_ + row - 1));
}

void InputRows::given(const Entry& entry) {
  const int64_t row = given_row_++;
  if (row >= num_rows_)
    other_rows(place(kGiven, row) + "is one more than the " + std::to_string(num_rows_) +
               " tokens that were asked for");

  const int32_t sent = request_.token_ids[static_cast<size_t>(first_ + row)];
  // The ids in the answer show that it belongs to this sequence. The server writes 0 for ids from
  // vocab_rows - 1 on, which must not count as another token.
  const bool clipped = sent >= vocab_rows_ - 1 && entry.id == 0;
  if (entry.id != sent && !clipped)
    other_rows(place(kGiven, row) + "is of token " + std::to_string(entry.id) + ", and " +
               std::to_string(sent) + " was sent there; the answer belongs to another sequence");
  if (row == 0) {
    if (entry.log_prob)
      other_rows(place(kGiven, row) +
                 "has a log-probability; before the first token there is no distribution");
    return;
  }
  if (!wanted(row)) return;
  scored_.given.push_back(number_of(entry, place(kGiven, row)));
}

void InputRows::null_top() {
  if (top_row_ != 0) other_rows(place(kTop, top_row_) + "is null; only the first may be");
  ++top_row_;
}

void InputRows::begin_top() {
  if (top_row_ == 0)
    other_rows(place(kTop, 0) + "is not null, but before the first token there is nothing");
  if (top_row_ >= num_rows_)
    other_rows(place(kTop, top_row_) + "is one more than the " + std::to_string(num_rows_) +
               " tokens that were asked for");
  entries_.clear();
}

void InputRows::top(const Entry& entry) {
  if (entries_.size() >= static_cast<size_t>(request_.top_k))
    other_rows(place(kTop, top_row_) + "has more than the " + std::to_string(request_.top_k) +
               " entries that were asked for");
  entries_.push_back(entry);
}

void InputRows::end_top() {
  if (entries_.size() != static_cast<size_t>(request_.top_k))
    other_rows(place(kTop, top_row_) + "has " + std::to_string(entries_.size()) +
               " entries instead of " + std::to_string(request_.top_k));
  if (wanted(top_row_)) keep_top(entries_);
  ++top_row_;
}

void InputRows::keep_top(const std::vector<Entry>& entries) {
  // The row is checked while it is copied, so that no number reaches the caller unchecked.
  const std::string where = place(kTop, top_row_);
  const auto begin = static_cast<std::ptrdiff_t>(next_top_ * entries.size());
  int32_t* const ids = scored_.ids.mutable_data_ptr<int32_t>() + begin;
  float* const log_probs = scored_.log_probs.mutable_data_ptr<float>() + begin;
  sorted_ids_.clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (entry.id < 0 || entry.id >= vocab_rows_)
      bad_rows(where + "has the id " + std::to_string(entry.id) + ", and the model has " +
               std::to_string(vocab_rows_));
    ids[i] = entry.id;
    log_probs[i] = number_of(entry, where + "the number of token " + std::to_string(entry.id));
    if (i > 0 && log_probs[i] > log_probs[i - 1])
      bad_rows(where + "its log-probabilities do not fall");
    sorted_ids_.push_back(entry.id);
  }

  std::sort(sorted_ids_.begin(), sorted_ids_.end());
  if (std::adjacent_find(sorted_ids_.begin(), sorted_ids_.end()) != sorted_ids_.end())
    bad_rows(where + "a token stands there twice");
  ++next_top_;
}

void InputRows::read_flat(const FlatTop& flat) {
  const int64_t k = request_.top_k;
  // The flat form is bytes without a structure of their own, so types, sizes and length are checked
  // before a byte is read as a number.
  if (flat.value_type != "float32" || flat.id_type != "int32")
    other_rows("input_top_logprobs: numbers are " + json_quote(flat.value_type) + " and ids " +
               json_quote(flat.id_type) + " instead of float32 and int32");
  if (flat.null_prefix != 1)
    other_rows("input_top_logprobs_null_prefix: is " + std::to_string(flat.null_prefix) +
               " instead of 1; the first token alone has no distribution");
  if (flat.shape != std::vector<int64_t>{num_rows_ - 1, k}) {
    std::string shape;
    for (const int64_t size : flat.shape)
      shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    other_rows("input_top_logprobs_shape: is [" + shape + "] instead of [" +
               std::to_string(num_rows_ - 1) + ", " + std::to_string(k) + "]");
  }
  const auto num_bytes = static_cast<size_t>((num_rows_ - 1) * k) * sizeof(float);
  if (flat.values.size() != num_bytes || flat.ids.size() != num_bytes)
    bad_rows("input_top_logprobs: has " + std::to_string(flat.values.size()) + " and " +
             std::to_string(flat.ids.size()) + " bytes instead of " + std::to_string(num_bytes) +
             " twice");

  entries_.resize(static_cast<size_t>(k));
  for (top_row_ = 1; top_row_ < num_rows_; ++top_row_) {
    if (!wanted(top_row_)) continue;
    for (size_t i = 0; i < entries_.size(); ++i) {
      const size_t at = (static_cast<size_t>((top_row_ - 1) * k) + i) * sizeof(float);
      float value = 0;
      std::memcpy(&value, flat.values.data() + at, sizeof value);
      std::memcpy(&entries_[i].id, flat.ids.data() + at, sizeof entries_[i].id);
      entries_[i].log_prob = value;
    }
    keep_top(entries_);
  }
}

// Both lists say something of the given tokens: its entry in the top-k has the same number, and a
// token that is not listed is no more probable than the last one that is. Otherwise the rows of one
// list belong to other positions.
void InputRows::check_consistent() const {
  const auto k = static_cast<size_t>(request_.top_k);
  const int32_t* ids = scored_.ids.const_data_ptr<int32_t>();
  const float* log_probs = scored_.log_probs.const_data_ptr<float>();
  for (size_t r = 0; r < scored_.given.size(); ++r, ids += k, log_probs += k) {
    const int64_t row = request_.positions[r] + 1 - first_;
    const int32_t id = request_.token_ids[static_cast<size_t>(first_ + row)];
    const auto at = static_cast<size_t>(std::find(ids, ids + k, id) - ids);
    const bool listed = at < k;
    const float expected = log_probs[listed ? at : k - 1];
    const float off = scored_.given[r] - expected;
    if (off > kSameNumber || (listed && off < -kSameNumber))
      bad_rows(place(kTop, row) + "says " + json_number(expected) +
               (listed ? " of token " : " of its last entry, which is not token ") +
               std::to_string(id) + ", and " + kGiven + " says " + json_number(scored_.given[r]) +
               " of that");
  }
}

Scored InputRows::take(std::optional<FlatTop> flat) {
  if (given_row_ != num_rows_)
    other_rows("input_token_logprobs: has " + std::to_string(given_row_) + " entries for " +
               std::to_string(num_rows_) + " tokens");
  if (request_.top_k == 0) return std::move(scored_);

  if (flat) read_flat(*flat);
  if (top_row_ != num_rows_)
    other_rows("input_top_logprobs: has " + std::to_string(top_row_) + " entries for " +
               std::to_string(num_rows_) + " tokens");
  check_consistent();
  return std::move(scored_);
}

std::string InputRows::place(const char* list, int64_t row) const {
  return std::string(list) + "[" + std::to_string(row) + "]: ";
}

}  // namespace retort::engines::sglang
