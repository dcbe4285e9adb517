// The parts of row formats that training samples and prompts for generation share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/data/detail/row.h"

namespace retort::data::detail {

// The prompt text of an instruction / input / output row: the wording published with the Alpaca
// data.
std::string alpaca_prompt(const Row& row);

// `conversations: [{from, value}]` as [{role, content}], with a `system` column in front if there
// is one.
Json sharegpt_messages(const Row& row);

// Checks [{role, content}, ...]: a non-empty array, role a string, content a string, an array of
// parts, or absent.
void check_messages(const Json& messages, std::string_view key);

// True if the columns `first` and `second` are both arrays of messages; false: both are strings.
// Anything else is refused.
bool are_messages(const Row& row, std::string_view first, std::string_view second);

// Checks what a row of one conversation (`format`: messages or sharegpt) holds, and gives the chat
// template besides, without rendering it.
void check_conversation(const Row& row, Format format);

// kInvalidArgument if the tokenizer's folder has no chat template.
void require_template(const models::ChatTemplate& chat, const models::Tokenizer& tokenizer);

// Columns that change what a sample means and are not supported are errors rather than ignored.
void refuse_columns(const Row& row, std::initializer_list<std::string_view> names,
                    const std::string& why);

// The variables that a row of messages gives the chat template besides them, as a JSON object: its
// `tools` (an array of JSON schemas, or its text) and the values of its own `chat_template_kwargs`.
std::string template_variables(const Row& row);
// The same columns in a row of strings, which no template renders, are errors.
void refuse_template_variables(const Row& row);

// kInvalidArgument unless there is a prompt, a completion (`name`: its column), and room for one of
// its tokens.
void check_fits(size_t prompt_tokens, size_t completion_tokens, const std::string& name,
                int64_t max_length);

// A row of prompt and completion messages as texts: the prompt with its generation prompt, and all
// messages. Some templates render a prompt otherwise where an answer follows it, so that the former
// does not begin the latter (recipes/data/detail/boundary.h).
struct RenderedPair {
  std::string prompt, whole;
};
RenderedPair render_pair(const Json& prompt, const Json& completion,
                         const models::ChatTemplate& chat, const std::string& variables);

// Ids of a text at the beginning of a sequence: what the post-processor puts in front (BOS; not
// twice where the text itself begins with it), then the text. Nothing that the post-processor would
// append.
std::vector<int32_t> encode_beginning(const models::Tokenizer& tokenizer, std::string_view text);

// EOS at the end of `ids` unless it is there already. kInvalidArgument if the tokenizer names no
// EOS.
void append_eos(std::vector<int32_t>& ids, const models::Tokenizer& tokenizer);

// The value of `input_ids`, a non-empty array.
const Json& require_ids(const Row& row);
// The ids of an input_ids row, each in [0, vocab_size).
std::vector<int32_t> row_ids(const Row& row, const models::Tokenizer& tokenizer);
// is_target of an input_ids row: labels -100 are not targets, others must equal the id; all ids
// without labels.
std::vector<uint8_t> row_label_mask(const Row& row, const std::vector<int32_t>& ids);

}  // namespace retort::data::detail
