#include "models/text/tool_calls.h"

#include "base/printable.h"
#include "models/text/detail/call_formats.h"
#include "models/text/detail/said_values.h"

namespace retort::models {
namespace {

ParsedTurn read_turn(ToolFormat format, std::string_view turn, std::string_view tools_json,
                     bool in_thought) {
  switch (format) {
    case ToolFormat::kHermes: return detail::hermes_calls(turn, in_thought);
    case ToolFormat::kQwen3Xml: return detail::qwen3_xml_calls(turn, tools_json, in_thought);
    case ToolFormat::kLlama3Json: return detail::llama3_json_calls(turn);
    case ToolFormat::kPythonic: return detail::pythonic_calls(turn);
  }
  return {};
}

// A template's text with the escapes of its string literals undone, as far as formats need it.
std::string without_escapes(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const char next = i + 1 < source.size() ? source[i + 1] : '\0';
    const bool escape = source[i] == '\\' && (next == 'n' || next == '"' || next == '\'');
    if (escape) ++i;
    text += escape && next == 'n' ? '\n' : source[i];
  }
  return text;
}

}  // namespace

ParsedTurn parse_tool_calls(ToolFormat format, std::string_view turn, std::string_view tools_json,
                            bool in_thought) {
  // What is written on as JSON must be UTF-8, and no longer than a line of the protocol.
  ParsedTurn parsed;
  if (turn.size() > kMaxTurnBytes || !is_utf8(turn))
    parsed.malformed = true;
  else
    parsed = read_turn(format, turn, tools_json, in_thought);

  // One call that cannot be read takes the others with it: half of a turn is never executed.
  if (parsed.malformed) {
    parsed.calls.clear();
    parsed.thought.clear();
    parsed.content = turn;
  }
  parsed.content = std::string(detail::trimmed(parsed.content));
  parsed.thought = std::string(detail::trimmed(parsed.thought));
  return parsed;
}

std::vector<ToolFormat> tool_formats_of(std::string_view template_source) {
  const std::string text = without_escapes(template_source);
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };

  // Each by what its templates print before a call, or tell the model to write. Others use the
  // same tags around something else: GLM a bare name, LFM2 a list between tokens of its own.
  std::vector<ToolFormat> formats;
  if (has("<tool_call>\n{\"name\"") || has("<tool_call>{\"name\""))
    formats.push_back(ToolFormat::kHermes);
  if (has("<function=") && has("<parameter=")) formats.push_back(ToolFormat::kQwen3Xml);
  if (has("{\"name\": \"") && has("\"parameters\": ") && !has("<tool_call>"))
    formats.push_back(ToolFormat::kLlama3Json);
  if (has("[func_name1(")) formats.push_back(ToolFormat::kPythonic);
  return formats;
}

}  // namespace retort::models
