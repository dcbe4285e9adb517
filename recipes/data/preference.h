// One preference pair: a prompt, the better and the worse completion.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/data/options.h"

namespace retort::data {

struct PreferenceSample {
  std::vector<int32_t> prompt_ids;  // never empty
  // completions, never empty; both follow the same prompt
  std::vector<int32_t> chosen_ids, rejected_ids;
  // other string/number columns of the row
  std::vector<std::pair<std::string, std::string>> fields;
  std::string origin;      // "train.jsonl:17"
  bool truncated = false;  // a completion was cut at max_length
  // both completions have the same ids: the pair teaches nothing
  bool identical = false;
  // Tokens of prompt + chosen and prompt + rejected, laid out as two sequences.
  int64_t num_tokens() const {
    return static_cast<int64_t>(2 * prompt_ids.size() + chosen_ids.size() + rejected_ids.size());
  }
};

// Turns one JSON line {prompt, chosen, rejected} or {chosen, rejected}, of strings or of messages,
// into a pair; how the prompt is found where it is not given: docs/data.md. Each of prompt + chosen
// and prompt + rejected keeps its first max_length tokens. kInvalidArgument naming `origin` as
// make_sample, and for a completion that truncation leaves empty.
PreferenceSample make_preference(std::string_view json_line, const std::string& origin,
                                 const Source& source, const models::Tokenizer& tokenizer,
                                 const models::ChatTemplate& chat, int64_t max_length);

}  // namespace retort::data
