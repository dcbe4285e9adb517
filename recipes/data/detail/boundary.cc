#include "recipes/data/detail/boundary.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "recipes/data/detail/formats.h"

namespace retort::data::detail {

std::vector<int32_t> JoinedIds::prompt() const {
  return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt_tokens)};
}

std::vector<int32_t> JoinedIds::completion() const {
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt_tokens), ids.end()};
}

JoinedIds join_ids(const std::vector<int32_t>& alone, std::vector<int32_t> whole) {
  // A tokenizer may merge the prompt's end with the completion's beginning. The prompt then ends
  // before the merged token, which belongs to the completion.
  const auto part = std::mismatch(alone.begin(), alone.end(), whole.begin(), whole.end());
  const auto common = static_cast<size_t>(part.first - alone.begin());
  if (common == 0 && !alone.empty())
    bad_row(
        "the prompt alone begins with another token than prompt and completion, so that nothing of "
        "it is left; end the prompt where a token ends, or use a chat template that renders a "
        "prompt as it renders the whole");
  return {
      .ids = std::move(whole), .prompt_tokens = common, .prompt_differs = common < alone.size()};
}

JoinedIds encode_joined(const models::Tokenizer& tokenizer, std::string_view prompt,
                        std::string_view completion) {
  const std::vector<int32_t> alone = encode_beginning(tokenizer, prompt);
  std::vector<int32_t> whole =
      encode_beginning(tokenizer, std::string(prompt) + std::string(completion));

  // Where the completion adds nothing, an EOS at the end is the prompt's own, and the completion
  // still gets one.
  std::vector<int32_t> added;
  if (whole != alone) added.swap(whole);
  append_eos(added, tokenizer);
  whole.insert(whole.end(), added.begin(), added.end());
  return join_ids(alone, std::move(whole));
}

JoinedIds encode_rendered(const models::Tokenizer& tokenizer, std::string_view prompt,
                          std::string_view whole) {
  return join_ids(tokenizer.encode(prompt, false), tokenizer.encode(whole, false));
}

void share_boundary(JoinedIds& first, JoinedIds& second) {
  const size_t common = std::min(first.prompt_tokens, second.prompt_tokens);
  for (JoinedIds* one : {&first, &second}) {
    one->prompt_differs |= common < one->prompt_tokens;
    one->prompt_tokens = common;
  }
}

}  // namespace retort::data::detail
