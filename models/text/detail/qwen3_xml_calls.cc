#include <algorithm>

#include "base/json_text.h"
#include "models/text/detail/call_formats.h"
#include "models/text/detail/said_values.h"
#include "models/text/detail/typed_values.h"

namespace retort::models::detail {
namespace {

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

// The name in a tag, on one line and up to its ">"; `text` is then behind it.
std::optional<std::string> take_name(std::string_view& text, std::string_view tag) {
  if (!text.starts_with(tag)) return std::nullopt;
  text.remove_prefix(tag.size());
  const size_t end = text.find_first_of(">\n");
  if (end == text.npos || end == 0 || text[end] == '\n') return std::nullopt;
  std::string name(text.substr(0, end));
  text.remove_prefix(end + 1);
  return name;
}

// The template puts each value on lines of its own: one end of a line before it and one behind it
// are not the value's, all others are.
std::string_view without_lines_around(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

std::optional<ToolCall> read_function(std::string_view text, const ParameterTypes& types) {
  text.remove_prefix(std::min(text.find_first_not_of(kJsonSpace), text.size()));
  const std::optional<std::string> name = take_name(text, kFunction);
  if (!name) return std::nullopt;

  // As in transformers, what stands between parameters is nobody's, </function> too.
  SaidObject arguments;
  for (;;) {
    const size_t tag = text.find('<');
    if (tag == text.npos) return ToolCall{*name, arguments.json()};
    text.remove_prefix(tag);
    if (text.starts_with(kFunction)) return std::nullopt;  // two functions in one call
    if (!text.starts_with(kParameter)) {
      text.remove_prefix(1);
      continue;
    }
    const std::optional<std::string> key = take_name(text, kParameter);
    const size_t end = text.find(kParameterEnd);
    if (!key || end == text.npos) return std::nullopt;
    const std::string_view value = without_lines_around(text.substr(0, end));
    arguments.set(json_quote(*key), types.typed(*name, *key, value));
    text.remove_prefix(end + kParameterEnd.size());
  }
}

}  // namespace

ParsedTurn qwen3_xml_calls(std::string_view turn, std::string_view tools_json, bool in_thought) {
  const ParameterTypes types(tools_json);
  return tagged_calls(turn, in_thought,
                      [&](std::string_view inside) { return read_function(inside, types); });
}

}  // namespace retort::models::detail
