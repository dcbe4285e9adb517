// What stands between two turns of a model, as token ids, so that nothing that the model said is
// ever tokenised again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace retort::models {

// A turn ends with a token of the template (<|im_end|>). What follows it up to the model's next
// turn is rendered with a sentinel in the place of what the model said: [user, assistant with the
// sentinel, the new messages] with the generation prompt; what stands behind the first end-of-turn
// token after the sentinel is the suffix. It is tokenised behind that token, which is then left
// out, because some tokens take white space behind them. (TRL's `_get_tool_suffix_ids` renders a
// prefix and cuts it off, which needs a template that keeps prefixes.)
//
// Immutable; any thread.
class TurnSuffix {
 public:
  // kInvalidArgument where turns cannot be joined without tokenising again, with the reason: no
  // template, one that prints no calls or no results, no end-of-turn token after an assistant's
  // call, or none that is one token.
  TurnSuffix(ChatTemplate chat, Tokenizer tokenizer);

  // The token that ends a turn with calls.
  int32_t end_of_turn() const;
  // The prompt for a turn ends inside of a thought, as Qwen3.5's does (parse_tool_calls), in a
  // conversation with these variables: `enable_thinking` changes it. The errors of ids().
  bool opens_thought(std::string_view variables_json = "{}") const;

  // The ids from behind the end-of-turn token to where the model goes on. `messages_json`: what
  // answers the turn, a JSON array of messages, first those of the role tool if the turn had calls,
  // of the role user otherwise; `variables_json`: what the template is given besides messages from
  // the conversation's first prompt on, e.g. {"tools": [...]} (ChatTemplate::render).
  // kInvalidArgument for other messages, and with the template's own words.
  std::vector<int32_t> ids(std::string_view messages_json,
                           std::string_view variables_json = "{}") const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace retort::models
