// The canonical keys of all row formats; `columns` may map these and nothing else.
#pragma once

#include <array>
#include <string_view>

namespace retort::data::detail {

inline constexpr std::array<std::string_view, 13> kKeys{
    "messages", "prompt", "completion",    "answer",    "text",   "labels",  "instruction",
    "input",    "output", "conversations", "input_ids", "chosen", "rejected"};

}  // namespace retort::data::detail
