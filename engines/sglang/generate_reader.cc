#include "engines/sglang/generate_reader.h"

#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/wire/log_prob.h"

namespace retort::engines::sglang {
namespace {

constexpr std::string_view kFlatValues = "input_top_logprobs_val_flat_b64";
constexpr std::string_view kFlatIds = "input_top_logprobs_idx_flat_b64";

[[noreturn]] void bad_answer(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }
[[noreturn]] void other_answer(const std::string& what) { throw Error(ErrorCode::kMismatch, what); }

int64_t whole_number(double value, const std::string& field) {
  constexpr double kMost = 9e15;
  const bool inside = value >= 0 && value <= kMost;
  const auto whole = inside ? static_cast<int64_t>(value) : -1;
  if (static_cast<double>(whole) != value)
    bad_answer(field + ": " + json_number(value) + " is no whole number");
  return whole;
}

int32_t id_of(double value, const std::string& field) {
  const bool inside = value >= 0 && value <= INT32_MAX;
  const auto id = inside ? static_cast<int32_t>(value) : -1;
  if (static_cast<double>(id) != value)
    bad_answer(field + ": " + json_number(value) + " is no token id");
  return id;
}

}  // namespace

GenerateReader::GenerateReader(Expected expected, int64_t max_drawn, InputRows* rows)
    : expected_(std::move(expected)),
      max_drawn_(static_cast<size_t>(max_drawn)),
      rows_(rows),
      reader_(*this) {}

void GenerateReader::end() {
  reader_.end();
  // The answer is held against the request before anything of it is used: its name, the number of
  // tokens that were read, and the weights that computed it.
  if (id_ != expected_.rid)
    other_answer("id: is " + json_quote(id_) + ", and " + json_quote(expected_.rid) +
                 " was asked; the answer belongs to another request");
  check_finish();
  if (prompt_tokens_ != expected_.prompt_tokens)
    other_answer("prompt_tokens: is " + std::to_string(prompt_tokens_) + ", and " +
                 std::to_string(expected_.prompt_tokens) +
                 " were sent; start the server without --allow-auto-truncate");
  if (!expected_.weight_version.empty() && weight_version_ != expected_.weight_version)
    other_answer("weight_version: is " + json_quote(weight_version_) + ", and " +
                 json_quote(expected_.weight_version) +
                 " was loaded; somebody else gives this server weights");

  if (rows_ == nullptr && !has_output_ids_)
    other_answer("output_ids: is missing; SGLang 0.5.23 gives them");
  if (rows_ == nullptr && !has_output_)
    other_answer("output_token_logprobs: is missing; the server does not compute them");
  if (rows_ != nullptr && !has_input_)
    other_answer("input_token_logprobs: is missing; the server does not compute them");
}

std::optional<FlatTop> GenerateReader::flat_top() {
  if (!has_flat_) return std::nullopt;
  if (has_top_) other_answer("input_top_logprobs: stands there flat and one by one");
  flat_.values = flat_values_.take();
  flat_.ids = flat_ids_.take();
  return std::move(flat_);
}

// How a draw has ended otherwise is checked_drawn()'s to judge; for a score it does not matter.
void GenerateReader::check_finish() const {
  const std::string& reason = drawn.ending.finish_reason;
  if (reason.empty()) other_answer("finish_reason: is missing; the request has not ended");
  if (reason == "abort")
    throw Error(ErrorCode::kUnavailable,
                "the server gave the request up (finish_reason: \"abort\"): " + finish_message_);
}

GenerateReader::Place GenerateReader::object_within(Place place) const {
  switch (place) {
    case Place::kOutside: return Place::kAnswer;
    case Place::kAnswer: return key_ == "meta_info" ? Place::kMeta : Place::kIgnored;
    case Place::kMeta: return key_ == "finish_reason" ? Place::kFinish : Place::kIgnored;
    default: return Place::kIgnored;
  }
}

GenerateReader::Place GenerateReader::array_within(Place place) const {
  switch (place) {
    case Place::kAnswer: return key_ == "output_ids" ? Place::kOutputIds : Place::kIgnored;
    case Place::kMeta:
      if (key_ == "output_token_logprobs") return Place::kOutputList;
      if (rows_ == nullptr) return Place::kIgnored;
      if (key_ == "input_token_logprobs") return Place::kInputList;
      if (key_ == "input_top_logprobs") return Place::kTopList;
      if (key_ == "input_top_logprobs_shape") return Place::kShape;
      return Place::kIgnored;
    case Place::kFinish: return key_ == "matched" ? Place::kMatchedIds : Place::kIgnored;
    case Place::kInputList: return Place::kInputEntry;
    case Place::kOutputList: return Place::kOutputEntry;
    case Place::kTopList: return Place::kTopRow;
    case Place::kTopRow: return Place::kTopEntry;
    default: return Place::kIgnored;
  }
}

bool GenerateReader::in_entry() const {
  const Place place = places_.back();
  return place == Place::kInputEntry || place == Place::kOutputEntry || place == Place::kTopEntry;
}

void GenerateReader::begin_object() {
  const Place place = object_within(places_.back());
  if (place == Place::kIgnored) refuse_kind("an object");
  places_.push_back(place);
}

void GenerateReader::end_object() { places_.pop_back(); }

void GenerateReader::begin_array() {
  const Place place = array_within(places_.back());
  if (place == Place::kIgnored) refuse_kind("an array");
  // A second list of the same name would add to the first one's numbers.
  const bool again = (place == Place::kOutputIds && std::exchange(has_output_ids_, true)) ||
                     (place == Place::kInputList && std::exchange(has_input_, true)) ||
                     (place == Place::kOutputList && std::exchange(has_output_, true)) ||
                     (place == Place::kTopList && std::exchange(has_top_, true));
  if (again) bad_answer(key_ + ": stands there twice");

  if (place == Place::kTopRow) rows_->begin_top();
  places_.push_back(place);
  if (!in_entry()) return;
  entry_ = {};
  num_elements_ = 0;
}

void GenerateReader::end_array() {
  const Place place = places_.back();
  if (in_entry()) entry_ended(place);
  if (place == Place::kTopRow) rows_->end_top();
  places_.pop_back();
}

void GenerateReader::entry_ended(Place place) {
  if (num_elements_ != 3)
    bad_answer("log-probabilities: an entry has " + std::to_string(num_elements_) +
               " elements instead of 3");
  switch (place) {
    case Place::kInputEntry: return rows_->given(entry_);
    case Place::kTopEntry: return rows_->top(entry_);
    default: return drawn_entry();
  }
}

// The answer to a score may list a drawn token that nobody asked for.
void GenerateReader::drawn_entry() {
  if (rows_ != nullptr) return;
  const std::string field = "output_token_logprobs[" + std::to_string(drawn.log_probs.size()) + "]";
  if (drawn.log_probs.size() >= max_drawn_)
    other_answer(field + ": is one more than the " + std::to_string(max_drawn_) +
                 " that were asked for");
  if (!entry_.log_prob)
    bad_answer(field +
               ": is null, which stands for NaN or infinity; the server's weights, dtype "
               "or kernels are wrong");
  drawn.log_probs.push_back(checked_log_prob(*entry_.log_prob, field));
  drawn.named_ids.push_back(entry_.id);
}

void GenerateReader::key(std::string_view name) { key_.assign(name); }

void GenerateReader::string(std::string_view text) {
  switch (places_.back()) {
    case Place::kMeta:
      if (key_ == "id") id_.assign(text);
      if (key_ == "weight_version") weight_version_.assign(text);
      if (key_ == "input_top_logprobs_val_flat_b64_dtype") flat_.value_type.assign(text);
      if (key_ == "input_top_logprobs_idx_flat_b64_dtype") flat_.id_type.assign(text);
      has_flat_ = has_flat_ || key_ == kFlatValues || key_ == kFlatIds;
      return;
    case Place::kFinish:
      if (key_ == "type") drawn.ending.finish_reason.assign(text);
      if (key_ == "matched") drawn.ending.stop_text.emplace(text);
      if (key_ == "message") finish_message_ = json_quote(text.substr(0, 200));
      return;
    default: break;
  }
  if (in_entry() && ++num_elements_ == 3) return;
  refuse_kind("a text");
}

void GenerateReader::string_piece(std::string_view piece) {
  if (places_.back() != Place::kMeta || rows_ == nullptr) return;
  if (key_ == kFlatValues) flat_values_.add(piece);
  if (key_ == kFlatIds) flat_ids_.add(piece);
}

void GenerateReader::number(double value) {
  switch (places_.back()) {
    case Place::kMeta:
      if (key_ == "prompt_tokens") prompt_tokens_ = whole_number(value, key_);
      if (key_ == "input_top_logprobs_null_prefix") flat_.null_prefix = whole_number(value, key_);
      return;
    case Place::kFinish:
      if (key_ == "matched") drawn.ending.stop_id = id_of(value, key_);
      return;
    case Place::kMatchedIds: drawn.ending.stop_id = id_of(value, key_); return;
    case Place::kShape:
      if (flat_.shape.size() == 2) other_answer("input_top_logprobs_shape: has more than 2 sizes");
      return flat_.shape.push_back(whole_number(value, "input_top_logprobs_shape"));

    case Place::kOutputIds:
      if (rows_ != nullptr) return;
      if (drawn.token_ids.size() >= max_drawn_)
        other_answer("output_ids: has more than the " + std::to_string(max_drawn_) +
                     " that were asked for");
      return drawn.token_ids.push_back(id_of(value, "output_ids"));
    default: break;
  }
  if (in_entry()) {
    // An entry is [log-probability, id, text]. Its elements have no names, so their place tells
    // them apart.
    const int element = ++num_elements_;
    if (element == 1) entry_.log_prob = value;
    if (element == 2) entry_.id = id_of(value, "log-probabilities");
    if (element <= 2) return;
  }
  refuse_kind("the number " + json_number(value));
}

void GenerateReader::boolean(bool value) { refuse_kind(value ? "true" : "false"); }

void GenerateReader::null() {
  if (places_.back() == Place::kTopList) return rows_->null_top();
  if (in_entry() && ++num_elements_ != 2) return;
  refuse_kind("null");
}

// The lists that are read hold one kind of value. Another kind means that the answer has another
// form than was asked for, so it is refused and not skipped.
void GenerateReader::refuse_kind(const std::string& kind) const {
  const auto refuse = [&](const std::string& field) {
    bad_answer(field + ": holds " + kind + ", which it cannot");
  };
  switch (places_.back()) {
    case Place::kOutside: return refuse("the answer");
    case Place::kOutputIds: return refuse("output_ids");
    case Place::kMatchedIds: return refuse("matched");
    case Place::kInputList: return refuse("input_token_logprobs");
    case Place::kInputEntry: return refuse("an entry of input_token_logprobs");
    case Place::kOutputList: return refuse("output_token_logprobs");
    case Place::kOutputEntry: return refuse("an entry of output_token_logprobs");
    case Place::kTopList: return refuse("input_top_logprobs");
    case Place::kTopRow: return refuse("a row of input_top_logprobs");
    case Place::kTopEntry: return refuse("an entry of input_top_logprobs");
    case Place::kShape: return refuse("input_top_logprobs_shape");
    default: return;
  }
}

}  // namespace retort::engines::sglang
