// Calls of tools in what a model said: one parser for each format in which templates teach them.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"

namespace retort::models {

enum class ToolFormat {
  kHermes,      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen2.5, Qwen3, Hermes
  kQwen3Xml,    // <tool_call><function=name><parameter=key>value</parameter>...: Qwen3-Coder, 3.5
  kLlama3Json,  // {"name": ..., "parameters": {...}}: Llama 3.1 to 3.3
  kPythonic,    // [name(key=value), ...]: Llama 3.2, 4
};

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object

  bool operator==(const ToolCall&) const = default;
};

// A turn above this is text: the protocol of environments has lines of no more.
inline constexpr size_t kMaxTurnBytes = 1 << 20;

// What a turn of the model says. A turn that begins a call and does not end it, or one of whose
// calls cannot be read, is text as a whole: it has no calls, and `malformed` says so.
struct ParsedTurn {
  std::string content;  // outside the calls and thoughts, without white space at both ends
  std::string thought;  // between <think> and </think>, likewise; of formats with tags alone
  std::vector<ToolCall> calls;
  bool malformed = false;
};

// Reads a turn: its text without the token that ended it, but with all other special tokens. In
// thoughts there are no calls.
//
// `tools_json`: the schemas that the template was given, for formats whose values have no types
//   (qwen3_xml); "[]" where there are none.
// `in_thought`: the prompt for the turn opened a thought (TurnSuffix::opens_thought), which goes up
//   to the first </think>, if there is one. Without it a </think> before any other tag says so.
// Throws kInvalidArgument for `tools_json` that is no JSON array, nothing for what a model said.
// Time: linear in the turn; values nest kMaxJsonNesting deep at most.
ParsedTurn parse_tool_calls(ToolFormat format, std::string_view turn,
                            std::string_view tools_json = "[]", bool in_thought = false);

// The formats that the text of a chat template teaches, each once.
std::vector<ToolFormat> tool_formats_of(std::string_view template_source);

}  // namespace retort::models

template <>
struct retort::EnumNames<retort::models::ToolFormat> {
  using E = retort::models::ToolFormat;
  static constexpr std::array<std::pair<std::string_view, E>, 4> values{
      {{"hermes", E::kHermes},
       {"qwen3_xml", E::kQwen3Xml},
       {"llama3_json", E::kLlama3Json},
       {"pythonic", E::kPythonic}}};
};
