#include "engines/vllm/completion_reader.h"

#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "engines/wire/log_prob.h"

namespace retort::engines::vllm {
namespace {

[[noreturn]] void impossible(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }
[[noreturn]] void foreign(const std::string& what) { throw Error(ErrorCode::kMismatch, what); }

int32_t token_id(double value, const std::string& field) {
  const bool inside = value >= 0 && value <= INT32_MAX;
  const auto id = inside ? static_cast<int32_t>(value) : -1;
  if (static_cast<double>(id) != value)
    impossible(field + ": " + json_number(value) + " is no token id");
  return id;
}

}  // namespace

CompletionReader::CompletionReader(std::vector<int32_t> prompt, int64_t max_drawn, PromptRows* rows)
    : prompt_(std::move(prompt)),
      max_drawn_(static_cast<size_t>(max_drawn)),
      rows_(rows),
      reader_(*this) {}

void CompletionReader::end() {
  reader_.end();
  if (num_choices_ != 1)
    foreign("choices: has " + std::to_string(num_choices_) + " completions instead of 1");
  if (num_prompt_ids_ != prompt_.size())
    foreign("prompt_token_ids: has " + std::to_string(num_prompt_ids_) + " ids instead of the " +
            std::to_string(prompt_.size()) +
            " that were sent; vLLM 0.10.2 or later gives them (return_token_ids)");
  if (!has_token_ids_)
    foreign("token_ids: is missing; vLLM 0.10.2 or later gives them (return_token_ids)");
  if (rows_ != nullptr && !has_rows_)
    foreign("prompt_logprobs: is missing; the server does not compute them");
}

CompletionReader::Place CompletionReader::object_within(Place place) const {
  switch (place) {
    case Place::kOutside: return Place::kAnswer;
    case Place::kChoices: return Place::kChoice;
    case Place::kChoice: return key_ == "logprobs" ? Place::kLogProbs : Place::kIgnored;
    case Place::kRows: return Place::kRow;
    case Place::kRow: return Place::kEntry;
    default: return Place::kIgnored;
  }
}

CompletionReader::Place CompletionReader::array_within(Place place) const {
  switch (place) {
    case Place::kAnswer: return key_ == "choices" ? Place::kChoices : Place::kIgnored;
    case Place::kChoice:
      if (key_ == "token_ids") return Place::kTokenIds;
      if (key_ == "prompt_token_ids") return Place::kPromptIds;
      if (key_ == "prompt_logprobs" && rows_ != nullptr) return Place::kRows;
      return Place::kIgnored;
    case Place::kLogProbs:
      if (key_ == "tokens") return Place::kNames;
      if (key_ == "token_logprobs") return Place::kTokenLogProbs;
      return Place::kIgnored;
    default: return Place::kIgnored;
  }
}

void CompletionReader::begin_object() {
  const Place outer = places_.back();
  const Place place = object_within(outer);
  if (place == Place::kIgnored) refuse_kind("an object");
  if (place == Place::kChoice && ++num_choices_ > 1) foreign("choices: has more than 1");
  if (place == Place::kRow) rows_->begin_row();
  if (place == Place::kEntry) rows_->begin_entry(key_);
  places_.push_back(place);
}

void CompletionReader::end_object() {
  const Place place = places_.back();
  places_.pop_back();
  if (place == Place::kEntry) rows_->end_entry();
  if (place == Place::kRow) rows_->end_row();
}

void CompletionReader::begin_array() {
  const Place place = array_within(places_.back());
  if (place == Place::kIgnored) refuse_kind("an array");
  // A second list of the same name would add to the first one's numbers.
  const bool again = (place == Place::kTokenIds && std::exchange(has_token_ids_, true)) ||
                     (place == Place::kRows && std::exchange(has_rows_, true));
  if (again) impossible(key_ + ": stands there twice");
  places_.push_back(place);
}

void CompletionReader::end_array() { places_.pop_back(); }

void CompletionReader::key(std::string_view name) { key_.assign(name); }

void CompletionReader::string(std::string_view text) {
  switch (places_.back()) {
    case Place::kChoice:
      if (key_ == "finish_reason") drawn.ending.finish_reason.assign(text);
      if (key_ == "stop_reason") drawn.ending.stop_text.emplace(text);
      return;
    case Place::kNames: return name_of_token(text);
    case Place::kEntry:
      if (key_ == "logprob" || key_ == "rank") refuse_kind("the text " + json_quote(text));
      return;
    default: refuse_kind("a text");
  }
}

void CompletionReader::number(double value) {
  switch (places_.back()) {
    case Place::kChoice:
      if (key_ == "stop_reason") drawn.ending.stop_id = token_id(value, key_);
      if (key_ == "index" && value != 0) foreign("index: is " + json_number(value));
      return;
    case Place::kTokenIds:
      if (drawn.token_ids.size() >= max_drawn_)
        foreign("token_ids: has more than the " + std::to_string(max_drawn_) +
                " that were asked for");
      return drawn.token_ids.push_back(token_id(value, "token_ids"));
    case Place::kPromptIds: return prompt_id(value);
    case Place::kTokenLogProbs:
      if (drawn.log_probs.size() >= max_drawn_)
        foreign("token_logprobs: has more than the " + std::to_string(max_drawn_) +
                " that were asked for");
      return drawn.log_probs.push_back(checked_log_prob(
          value, "token_logprobs[" + std::to_string(drawn.log_probs.size()) + "]"));
    case Place::kEntry:
      if (key_ == "logprob") rows_->log_prob(value);
      if (key_ == "rank") rows_->rank(value);
      return;
    default: refuse_kind("the number " + json_number(value));
  }
}

void CompletionReader::boolean(bool value) { refuse_kind(value ? "true" : "false"); }

void CompletionReader::null() {
  if (places_.back() == Place::kRows) return rows_->null_row();
  if (places_.back() == Place::kEntry && key_ != "logprob" && key_ != "rank") return;
  refuse_kind("null");
}

// The lists that are read hold one kind of value. Another kind means that the answer has another
// form than was asked for, so it is refused and not skipped.
void CompletionReader::refuse_kind(const std::string& kind) const {
  const auto refuse = [&](const std::string& field) {
    impossible(field + ": holds " + kind + ", which it cannot");
  };
  switch (places_.back()) {
    case Place::kOutside: return refuse("the answer");
    case Place::kChoices: return refuse("choices");
    case Place::kTokenIds: return refuse("token_ids");
    case Place::kPromptIds: return refuse("prompt_token_ids");
    case Place::kNames: return refuse("tokens");
    case Place::kTokenLogProbs: return refuse("token_logprobs");
    case Place::kRows: return refuse("prompt_logprobs");
    case Place::kRow: return refuse("an entry of prompt_logprobs");
    case Place::kEntry:
      if (key_ == "logprob" || key_ == "rank") refuse("prompt_logprobs: " + key_);
      return;
    default: return;
  }
}

void CompletionReader::prompt_id(double value) {
  const size_t at = num_prompt_ids_++;
  if (at >= prompt_.size() || static_cast<double>(prompt_[at]) != value)
    foreign(
        "prompt_token_ids[" + std::to_string(at) + "]: is " + json_number(value) + ", " +
        (at < prompt_.size() ? std::to_string(prompt_[at]) + " was sent" : "more than was sent") +
        "; the answer belongs to another prompt, or the server changed this one");
}

void CompletionReader::name_of_token(std::string_view text) {
  static constexpr std::string_view kStart = "token_id:";
  int32_t id = -1;
  const bool starts = text.starts_with(kStart);
  const std::string_view digits = starts ? text.substr(kStart.size()) : text;
  const char* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, id);
  if (!starts || error != std::errc() || stopped != end || id < 0)
    impossible("tokens: " + json_quote(text.substr(0, 40)) +
               " instead of token_id:N (return_tokens_as_token_ids)");
  if (drawn.named_ids.size() >= max_drawn_)
    foreign("tokens: has more than the " + std::to_string(max_drawn_) + " that were asked for");
  drawn.named_ids.push_back(id);
}

}  // namespace retort::engines::vllm
