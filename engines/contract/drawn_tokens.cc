#include "engines/contract/drawn_tokens.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::engines {
namespace {

using models::FinishReason;

[[noreturn]] void not_asked_for(const std::string& what) {
  throw Error(ErrorCode::kMismatch, what);
}

void check_ids(const DrawnTokens& tokens, int64_t num_ids) {
  const size_t count = tokens.token_ids.size();
  if (count == 0) not_asked_for("token_ids: nothing was drawn");
  if (tokens.log_probs.size() != count)
    not_asked_for("log-probabilities: there are " + std::to_string(tokens.log_probs.size()) +
                  " numbers for " + std::to_string(count) + " tokens");
  if (tokens.named_ids != tokens.token_ids)
    not_asked_for(
        "log-probabilities: other ids stand beside them than were drawn, so that they have no "
        "owner");
  const auto largest = *std::max_element(tokens.token_ids.begin(), tokens.token_ids.end());
  if (num_ids > 0 && largest >= num_ids)
    not_asked_for("token_ids: has " + std::to_string(largest) + ", and the tokenizer has " +
                  std::to_string(num_ids) + " ids; is another model served?");
}

bool holds(const std::vector<int64_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// An id of either kind ends a completion.
bool is_end(int32_t id, const DrawRequest& request) {
  return holds(request.how.eos_token_ids, id) || holds(request.how.stop_token_ids, id);
}

std::string shown(const Ending& ending) {
  std::string text = "finish_reason: " + json_quote(ending.finish_reason);
  if (ending.stop_id) text += " by token " + std::to_string(*ending.stop_id);
  if (ending.stop_text) text += " by " + json_quote(*ending.stop_text);
  return text;
}

FinishReason stopped(const DrawnTokens& tokens, const DrawRequest& request) {
  const Ending& ending = tokens.ending;
  const std::vector<std::string>& stop = request.how.stop;
  const int32_t last = tokens.token_ids.back();
  if (holds(request.how.eos_token_ids, last)) return FinishReason::kEos;
  if (holds(request.how.stop_token_ids, last)) return FinishReason::kStop;
  if (ending.stop_text && std::find(stop.begin(), stop.end(), *ending.stop_text) != stop.end())
    return FinishReason::kStop;
  not_asked_for(
      shown(ending) + " after token " + std::to_string(last) +
      ", which no end token and no stop string of the request is; does the server's generation "
      "config or tokenizer name end tokens of its own?");
}

FinishReason at_length(const DrawnTokens& tokens, const DrawRequest& request) {
  const auto count = static_cast<int64_t>(tokens.token_ids.size());
  if (count != request.how.max_new_tokens)
    not_asked_for(
        "finish_reason: \"length\" after " + std::to_string(count) + " of " +
        std::to_string(request.how.max_new_tokens) + " tokens (max_new_tokens), behind " +
        std::to_string(request.prompt.size()) +
        " of the prompt: the server allows no more; raise its context length, or what else "
        "limits max_new_tokens there, or ask for less");
  if (is_end(tokens.token_ids.back(), request))
    not_asked_for("finish_reason: \"length\", but the last token is an end token");
  return FinishReason::kLength;
}

FinishReason finish_reason_of(const DrawnTokens& tokens, const DrawRequest& request) {
  const std::string& reason = tokens.ending.finish_reason;
  if (reason == "stop") return stopped(tokens, request);
  if (reason == "length") return at_length(tokens, request);
  if (reason == "abort")
    throw Error(ErrorCode::kUnavailable,
                "the server gave the completion up (finish_reason: \"abort\"); draw again");
  not_asked_for(shown(tokens.ending) + "; expected \"stop\" or \"length\"");
}

}  // namespace

Drawn checked_drawn(DrawnTokens tokens, const DrawRequest& request) {
  // One that was given up may have drawn nothing.
  const bool given_up = tokens.ending.finish_reason == "abort";
  if (!given_up) check_ids(tokens, request.how.sampling.num_ids);
  const FinishReason reason = finish_reason_of(tokens, request);

  // Tokens behind an end token would be trained on as part of the completion.
  const auto end = std::find_if(tokens.token_ids.begin(), tokens.token_ids.end(),
                                [&](int32_t id) { return is_end(id, request); });
  if (end != tokens.token_ids.end() && end + 1 != tokens.token_ids.end())
    not_asked_for("token_ids: go on after the end token " + std::to_string(*end));
  return {.token_ids = std::move(tokens.token_ids),
          .log_probs = std::move(tokens.log_probs),
          .finish_reason = reason};
}

}  // namespace retort::engines
