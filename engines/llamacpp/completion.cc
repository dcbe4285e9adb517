#include "engines/llamacpp/completion.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"

namespace retort::engines::llamacpp {
namespace {

constexpr double kLargestSum = 1.01;  // of probabilities, with their rounding

float log_prob_of(const Json& entry, const std::string& field) {
  if (entry.contains("prob"))
    throw Error(ErrorCode::kMismatch, "the answer's " + field +
                                          " are probabilities after sampling; raw ones were asked "
                                          "for (post_sampling_probs: false)");
  const Json& value = member(entry, "logprob");
  if (value.is_null())
    refuse_field(field + ".logprob", "is null: NaN in the server; see its weights");
  if (!value.is_number()) refuse_field(field + ".logprob", "is " + excerpt(value));
  const double number = value.get<double>();
  if (!(number <= 0)) refuse_field(field + ".logprob", "is " + excerpt(value) + ", above 0");
  if (number <= -double{std::numeric_limits<float>::max()}) return kLeastLogProb;
  return static_cast<float>(number);
}

void read_top(const Json& entry, const std::string& field, const CompletionBounds& bounds,
              Chances& chances) {
  const Json& top = array(entry, "top_logprobs");
  const auto expected = static_cast<size_t>(std::min(bounds.num_top, bounds.vocab_rows));
  if (top.size() != expected)
    refuse_field(field, "has " + std::to_string(top.size()) + " entries; n_probs asked for " +
                            std::to_string(expected) +
                            ". A server that guesses ahead (speculative decoding) gives none");

  // The entries must be a part of one distribution: no id twice, falling, and with a sum of at most
  // 1. Otherwise they are not what was asked for, whatever they are.
  std::set<int32_t> seen;
  float before = 0;
  double sum = 0;
  for (const Json& one : top) {
    const auto id = static_cast<int32_t>(
        integer_of(member(one, "id"), field + ".id", 0, bounds.vocab_rows - 1));
    if (!seen.insert(id).second) refuse_field(field, "has token " + std::to_string(id) + " twice");
    const float log_prob = log_prob_of(one, field);
    if (log_prob > before) refuse_field(field, "does not fall from each entry to the next");
    before = log_prob;
    sum += std::exp(static_cast<double>(log_prob));
    chances.top_ids.push_back(id);
    chances.top_log_probs.push_back(log_prob);
  }
  if (sum > kLargestSum)
    refuse_field(field, "has probabilities that add up to " + std::to_string(sum));
}

// The answer states the drawn token's log-probability alone and in its list. If the two differ, one
// of them is another token's.
void check_agreement(const Chances& chances, const std::string& field) {
  for (size_t i = 0; i < chances.top_ids.size(); ++i)
    if (chances.top_ids[i] == chances.id && chances.top_log_probs[i] != chances.log_prob)
      refuse_field(field,
                   "disagrees with its top_logprobs about token " + std::to_string(chances.id));
  if (!chances.top_ids.empty() && chances.log_prob > chances.top_log_probs.front())
    refuse_field(field, "is above that of the most probable token");
}

Chances read_chances(const Json& entry, const std::string& field, const CompletionBounds& bounds) {
  Chances chances;
  chances.id = static_cast<int32_t>(
      integer_of(member(entry, "id"), field + ".id", 0, bounds.vocab_rows - 1));
  chances.log_prob = log_prob_of(entry, field);
  read_top(entry, field + ".top_logprobs", bounds, chances);
  check_agreement(chances, field + ".logprob");
  return chances;
}

std::vector<int32_t> read_tokens(const Json& answer, const CompletionBounds& bounds) {
  const Json& list = array(answer, "tokens");
  if (list.empty() || static_cast<int64_t>(list.size()) > bounds.max_tokens)
    refuse_field("tokens", "has " + std::to_string(list.size()) + " ids; expected 1 to " +
                               std::to_string(bounds.max_tokens));
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list)
    ids.push_back(static_cast<int32_t>(integer_of(id, "tokens", 0, bounds.vocab_rows - 1)));
  return ids;
}

StopType read_stop(const Json& answer) {
  const std::string stop = text(answer, "stop_type");
  if (stop == "eos") return StopType::kEnd;
  if (stop == "word") return StopType::kWord;
  if (stop == "limit") return StopType::kLimit;
  refuse_field("stop_type", "is " + excerpt(stop) + "; expected eos, word or limit");
}

}  // namespace

std::vector<std::string> completion_fields() {
  return {"tokens", "completion_probabilities", "stop_type", "stopping_word", "truncated"};
}

Completion read_completion(const Json& answer, const CompletionBounds& bounds) {
  Completion completion;
  completion.token_ids = read_tokens(answer, bounds);
  completion.stop = read_stop(answer);
  completion.stop_string = text(answer, "stopping_word");
  completion.truncated = boolean(answer, "truncated");
  if (answer.contains("generation_settings"))
    completion.settings = answer.at("generation_settings");

  // The server leaves this member out when it says nothing of any token.
  if (!answer.contains("completion_probabilities")) return completion;
  const Json& list = array(answer, "completion_probabilities");
  if (list.size() > completion.token_ids.size())
    refuse_field("completion_probabilities",
                 "has " + std::to_string(list.size()) + " entries for " +
                     std::to_string(completion.token_ids.size()) + " tokens");
  for (size_t i = 0; i < list.size(); ++i)
    completion.chances.push_back(
        read_chances(list[i], "completion_probabilities[" + std::to_string(i) + "]", bounds));
  return completion;
}

uint64_t completion_bytes(int64_t prompt_tokens, const CompletionBounds& bounds) {
  const auto top = static_cast<uint64_t>(std::min(bounds.num_top, bounds.vocab_rows));
  return (uint64_t{1} << 20) + 64 * static_cast<uint64_t>(prompt_tokens) +
         static_cast<uint64_t>(bounds.max_tokens) * (top + 1) * 1024;
}

}  // namespace retort::engines::llamacpp
