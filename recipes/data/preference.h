// One preference pair: a prompt, the better and the worse completion.
#pragma once

#include <algorithm>
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
  // completions, never empty; both follow the same prompt, but where truncation has cut it
  std::vector<int32_t> chosen_ids, rejected_ids;
  std::vector<int32_t> own_prompt_of_rejected;  // what is left before rejected_ids; empty: the same
  // other string/number columns of the row
  std::vector<std::pair<std::string, std::string>> fields;
  std::string origin;      // "train.jsonl:17"
  bool truncated = false;  // a completion was cut at max_length
  // both completions have the same ids: the pair teaches nothing
  bool identical = false;
  // the prompt alone has other tokens at its end than the pair has there
  bool prompt_differs = false;
  bool shares_prompt() const { return own_prompt_of_rejected.empty(); }
  const std::vector<int32_t>& rejected_prompt_ids() const {
    return shares_prompt() ? prompt_ids : own_prompt_of_rejected;
  }
  // Tokens of prompt + chosen and prompt + rejected, laid out as two sequences.
  int64_t num_tokens() const {
    return static_cast<int64_t>(prompt_ids.size() + chosen_ids.size() +
                                rejected_prompt_ids().size() + rejected_ids.size());
  }
  // The length of the longer of the two.
  int64_t longest() const {
    return static_cast<int64_t>(std::max(prompt_ids.size() + chosen_ids.size(),
                                         rejected_prompt_ids().size() + rejected_ids.size()));
  }
};

// Turns one JSON line {prompt, chosen, rejected} or {chosen, rejected}, of strings or of messages,
// into a pair; how the prompt is found where it is not given: docs/data.md. Each of prompt + chosen
// and prompt + rejected keeps its first or its last max_length tokens. At the end a completion that
// fills them all has its first token for a prompt: nothing predicts it. kInvalidArgument naming
// `origin` as make_sample, and for a completion that truncation leaves empty.
PreferenceSample make_preference(std::string_view json_line, const std::string& origin,
                                 const Source& source, const models::Tokenizer& tokenizer,
                                 const models::ChatTemplate& chat, int64_t max_length,
                                 TruncationMode mode = TruncationMode::kKeepStart);
// Refuses what make_preference refuses without a tokenizer; as check_sample_row.
void check_preference_row(std::string_view json_line, const Source& source);

}  // namespace retort::data
