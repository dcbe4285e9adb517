// The canonical keys of rows; `columns` may map these and nothing else.
#pragma once

#include <array>
#include <string_view>

namespace retort::data::detail {

// The keys of all row formats.
inline constexpr std::array<std::string_view, 15> kKeys{
    "messages",  "prompt",      "completion", "answer", "text",
    "labels",    "instruction", "input",      "output", "conversations",
    "input_ids", "chosen",      "rejected",   "tools",  "chat_template_kwargs"};

// The key of judged completions (unpaired.h). In rows of other formats a column of this name is one
// like any other.
inline constexpr std::string_view kLabelKey = "label";

}  // namespace retort::data::detail
