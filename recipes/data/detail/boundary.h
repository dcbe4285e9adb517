// Finds where a prompt ends in the tokens of the prompt with its completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/text/tokenizer.h"

namespace retort::data::detail {

// The tokens of a prompt with its completion, which were cut as one text.
struct JoinedIds {
  std::vector<int32_t> ids;
  // So many of them are also the first of the prompt's own tokens: the completion begins where the
  // two part.
  size_t prompt_tokens = 0;
  // The prompt alone ends in other tokens, because one spans the boundary or the chat template
  // renders a prompt otherwise: what is generated begins from tokens that no row has.
  bool prompt_differs = false;

  std::vector<int32_t> prompt() const;
  std::vector<int32_t> completion() const;
};

// `alone`: the prompt's tokens; `whole`: those of prompt and completion. The longest common prefix,
// as TRL 1.16's trainers take it (data_utils.common_prefix_length). kInvalidArgument for a prompt
// of which no token is left.
JoinedIds join_ids(const std::vector<int32_t>& alone, std::vector<int32_t> whole);

// Strings: prompt + completion are one text, with what stands in front of any text (as
// encode_beginning) and EOS at its end unless it is there. kInvalidArgument if the tokenizer names
// no EOS.
JoinedIds encode_joined(const models::Tokenizer& tokenizer, std::string_view prompt,
                        std::string_view completion);

// Renderings of a chat template: of the prompt with its generation prompt, and of all.
JoinedIds encode_rendered(const models::Tokenizer& tokenizer, std::string_view prompt,
                          std::string_view whole);

// Two completions of one prompt: both then begin where the first of them parts from it.
void share_boundary(JoinedIds& first, JoinedIds& second);

}  // namespace retort::data::detail
