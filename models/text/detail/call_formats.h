// The parsers of tool_calls.h, one for each format. Private to models/text.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "models/text/tool_calls.h"

namespace retort::models::detail {

// All take a turn of UTF-8. Of a malformed one they say so alone; contents are as they stand, with
// white space around.
ParsedTurn hermes_calls(std::string_view turn, bool in_thought);
ParsedTurn qwen3_xml_calls(std::string_view turn, std::string_view tools_json, bool in_thought);
ParsedTurn llama3_json_calls(std::string_view turn);
ParsedTurn pythonic_calls(std::string_view turn);

// The call in what stands between <tool_call> and the next </tool_call>; none if it cannot be read.
using ReadCall = std::function<std::optional<ToolCall>(std::string_view)>;

// What hermes and qwen3_xml share: thoughts, calls in tags, and text around them.
ParsedTurn tagged_calls(std::string_view turn, bool in_thought, const ReadCall& read);

inline ParsedTurn malformed_turn() {
  ParsedTurn turn;
  turn.malformed = true;
  return turn;
}

}  // namespace retort::models::detail
