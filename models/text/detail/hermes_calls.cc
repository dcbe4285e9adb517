#include "models/text/detail/call_formats.h"
#include "models/text/detail/said_values.h"

namespace retort::models::detail {

// As TRL takes it, a call without arguments, or with null, is a call of none.
ParsedTurn hermes_calls(std::string_view turn, bool in_thought) {
  return tagged_calls(turn, in_thought, [](std::string_view inside) -> std::optional<ToolCall> {
    const std::optional<SaidObject> call = read_json_object(inside);
    if (!call) return std::nullopt;
    const std::string* arguments = call->find("arguments");
    return call_of(*call, arguments != nullptr && *arguments != "null" ? *arguments : "{}");
  });
}

}  // namespace retort::models::detail
