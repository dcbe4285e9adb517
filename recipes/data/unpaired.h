// One judged completion: a prompt, what was said after it, and whether that was good.
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

struct UnpairedSample {
  std::vector<int32_t> prompt_ids;  // never empty
  // Never empty. The whole completion: after a shorter prompt more of it fits (fit_completion). No
  // more than max_length - 1 tokens are kept, which is what the shortest prompt leaves room for.
  std::vector<int32_t> completion_ids;
  bool desirable = false;
  // other string/number columns of the row
  std::vector<std::pair<std::string, std::string>> fields;
  std::string origin;      // "train.jsonl:17"
  int64_t num_tokens = 0;  // of the prompt and what fits of the completion, at most max_length
  bool truncated = false;  // the completion is cut after its own prompt
  // the prompt alone has other tokens at its end than the row has there
  bool prompt_differs = false;
  int64_t longest() const { return num_tokens; }
};

// Turns one JSON line {prompt, completion, label}, prompt and completion both strings or both
// messages, label true or false, into a sample. kInvalidArgument naming `origin` as make_sample,
// and for a prompt that leaves no room for a completion.
UnpairedSample make_unpaired(std::string_view json_line, const std::string& origin,
                             const Source& source, const models::Tokenizer& tokenizer,
                             const models::ChatTemplate& chat, int64_t max_length);
// Refuses what make_unpaired refuses without a tokenizer; as check_sample_row.
void check_unpaired_row(std::string_view json_line, const Source& source);

// The beginning of a completion that has room after a prompt within max_length tokens.
std::vector<int32_t> fit_completion(const std::vector<int32_t>& prompt,
                                    const std::vector<int32_t>& completion, int64_t max_length);

}  // namespace retort::data
