// Calls of tools in a conversation that a chat template leaves out: an empty turn would be learned
// in their place.
#pragma once

#include <string>
#include <string_view>

#include "models/text/chat_template.h"
#include "recipes/data/detail/row.h"

namespace retort::data::detail {

// bad_row() where `text`, which is `messages` as `chat` rendered them with these variables, lacks a
// call of theirs. A call is known by its name. Where that may stand in the text for another reason,
// as in a list of the tools, the conversation is rendered once more, with a sentinel for each name.
void expect_calls(const Json& messages, const models::ChatTemplate& chat,
                  const std::string& variables, std::string_view text);

}  // namespace retort::data::detail
