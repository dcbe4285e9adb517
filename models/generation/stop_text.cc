#include "models/generation/stop_text.h"

#include <algorithm>

#include "base/error.h"

namespace retort::models {
namespace {

// Tells whether the tokenizer leaves the token out of texts. An ordinary token may be no text by
// itself either (a space that decoders strip), but then it is none with special tokens kept.
bool is_special(const Tokenizer& tokenizer, int32_t id) {
  const std::vector<int32_t> one{id};
  return tokenizer.decode(one, /*skip_special_tokens=*/true).empty() &&
         !tokenizer.decode(one, /*skip_special_tokens=*/false).empty();
}

// An id for an unknown character is special as well, and its name is not in the text.
void refuse_special_inside(const Tokenizer& tokenizer, const std::string& text) {
  for (const int32_t id : tokenizer.encode(text, /*add_special_tokens=*/false)) {
    const std::string token = tokenizer.id_to_token(id);
    if (token.empty() || text.find(token) == std::string::npos || !is_special(tokenizer, id))
      continue;
    throw Error(ErrorCode::kInvalidArgument,
                "'" + text + "' holds the special token '" + token +
                    "' beside other text, and would never be found: special tokens are no part of "
                    "a completion's text. Write '" +
                    token +
                    "' alone, which ends a completion as an end token does, or the text "
                    "without it")
        .with("stop", text);
  }
}

}  // namespace

StopRule stop_rule(const Tokenizer& tokenizer, const std::vector<std::string>& stop,
                   int64_t min_new_tokens) {
  StopRule rule{.texts = {}, .token_ids = {}, .min_new_tokens = min_new_tokens};
  for (const std::string& text : stop) {
    const int32_t id = text.empty() ? -1 : tokenizer.token_to_id(text);
    if (id < 0 || !is_special(tokenizer, id)) {
      refuse_special_inside(tokenizer, text);
      rule.texts.push_back(text);
    } else if (std::find(rule.token_ids.begin(), rule.token_ids.end(), id) ==
               rule.token_ids.end()) {
      rule.token_ids.push_back(id);
    }
  }
  return rule;
}

size_t find_stop(std::string_view text, const std::vector<std::string>& stops, size_t early) {
  size_t first = std::string_view::npos;
  for (const std::string& stop : stops) {
    const size_t from = early < stop.size() ? 0 : early - stop.size() + 1;
    first = std::min(first, text.find(stop, from));
  }
  return first;
}

std::string completion_text(const Tokenizer& tokenizer, std::span<const int32_t> token_ids,
                            FinishReason reason, const StopRule& rule) {
  std::string text = tokenizer.decode(token_ids, /*skip_special_tokens=*/true);
  if (reason != FinishReason::kStop) return text;

  // A stop text that ends within the first min_new_tokens ended nothing, so it is not looked for
  // there.
  size_t early = 0;
  if (rule.min_new_tokens > 0 && !rule.texts.empty()) {
    const size_t count = std::min(token_ids.size(), static_cast<size_t>(rule.min_new_tokens));
    early = tokenizer.decode(token_ids.first(count), /*skip_special_tokens=*/true).size();
  }
  return text.substr(0, find_stop(text, rule.texts, early));
}

}  // namespace retort::models
