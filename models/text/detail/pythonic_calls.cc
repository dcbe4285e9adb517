#include "base/json_text.h"
#include "models/text/detail/call_formats.h"
#include "models/text/detail/python_literals.h"
#include "models/text/detail/said_values.h"

namespace retort::models::detail {
namespace {

bool begins_with_letter(std::string_view name) { return !name.empty() && name[0] != '_'; }

// "name=value, ...)" behind the opening bracket. Values without names are nobody's.
std::optional<SaidObject> read_arguments(PythonReader& reader) {
  SaidObject arguments;
  bool first = true;
  for (;;) {
    if (!first) reader.skip_space();
    if (reader.take(")")) return arguments;
    const std::string_view name = reader.name();
    if (!first) reader.skip_space();
    std::string key = json_quote(name);
    if (!begins_with_letter(name) || !reader.take("=")) return std::nullopt;

    reader.skip_space();
    std::optional<std::string> value = reader.value(kArgumentDepth);
    if (!value) return std::nullopt;
    arguments.set(std::move(key), std::move(*value));
    reader.skip_space();
    if (!reader.take(",") && reader.peek() != ')') return std::nullopt;
    first = false;
  }
}

// The tokens that Llama 4 puts around a list.
std::string_view without_python_tokens(std::string_view text) {
  constexpr std::string_view kStart = "<|python_start|>";
  constexpr std::string_view kEnd = "<|python_end|>";
  text = trimmed(text);
  if (!text.starts_with(kStart)) return text;
  text.remove_prefix(kStart.size());
  text = trimmed(text);
  if (text.ends_with(kEnd)) text.remove_suffix(kEnd.size());
  return text;
}

// "[name(", without space in between.
bool begins_list(PythonReader reader) {
  return reader.take("[") && begins_with_letter(reader.name()) && reader.take("(");
}

}  // namespace

// As vLLM reads it: a turn is a list of calls and nothing else, or it is text.
ParsedTurn pythonic_calls(std::string_view turn) {
  PythonReader reader(without_python_tokens(turn));
  ParsedTurn parsed;
  if (!begins_list(reader)) {
    parsed.content = turn;
    return parsed;
  }

  reader.take("[");
  for (;;) {
    reader.skip_space();
    const std::string name(reader.name());
    if (!begins_with_letter(name) || !reader.take("(")) return malformed_turn();
    const std::optional<SaidObject> arguments = read_arguments(reader);
    if (!arguments) return malformed_turn();
    parsed.calls.push_back({name, arguments->json()});

    reader.skip_space();
    if (reader.take("]")) break;
    if (!reader.take(",")) return malformed_turn();
  }
  reader.skip_space();
  return reader.done() ? parsed : malformed_turn();
}

}  // namespace retort::models::detail
