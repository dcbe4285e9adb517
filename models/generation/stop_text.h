// Stop texts: which of them are tokens, where one begins, and the text before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/generation/request.h"
#include "models/text/tokenizer.h"

namespace retort::models {

// What ends a completion beside end tokens, as an engine can look for it.
struct StopRule {
  std::vector<std::string> texts;  // looked for in the text without special tokens
  // special tokens, which stand in no such text: DrawOptions::stop_token_ids
  std::vector<int64_t> token_ids;
  int64_t min_new_tokens = 0;  // DrawOptions::min_new_tokens
};

// A text that is one special token becomes its id. kInvalidArgument naming the text and the token
// where a special token stands beside other text: an engine looks for one of the two alone.
StopRule stop_rule(const Tokenizer& tokenizer, const std::vector<std::string>& stop,
                   int64_t min_new_tokens = 0);

// Where the first of `stops` begins in `text`, of those that end behind its first `early` bytes;
// npos: none does.
size_t find_stop(std::string_view text, const std::vector<std::string>& stops, size_t early = 0);

// What a completion says, as people and rewards read it: without special tokens, and, where a stop
// text ended it, without that text and what its last token holds behind it.
std::string completion_text(const Tokenizer& tokenizer, std::span<const int32_t> token_ids,
                            FinishReason reason, const StopRule& rule);

}  // namespace retort::models
