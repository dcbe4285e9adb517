#include "models/text/detail/call_formats.h"
#include "models/text/detail/said_values.h"

namespace retort::models::detail {
namespace {

constexpr std::string_view kPythonTag = "<|python_tag|>";

// A brace and "name": whoever writes that means a call, and one in prose does not.
bool begins_object(std::string_view text) {
  constexpr std::string_view kName = "\"name\"";
  const size_t key = text.find_first_not_of(kJsonSpace, 1);
  return key != text.npos && text.substr(key).starts_with(kName);
}

// What stands between calls: templates of one call a turn have no word for it, models write ; or ,.
bool only_separates(std::string_view text) {
  return text.find_first_not_of(" \t\n\r;,") == text.npos;
}

std::string without_python_tag(std::string_view text) {
  std::string rest;
  for (;;) {
    const size_t tag = text.find(kPythonTag);
    rest += text.substr(0, tag);
    if (tag == text.npos) return rest;
    text.remove_prefix(tag + kPythonTag.size());
  }
}

}  // namespace

// As vLLM reads it: every brace outside of what was read begins an object, and the first that is no
// call makes the turn text.
ParsedTurn llama3_json_calls(std::string_view turn) {
  ParsedTurn parsed;
  size_t at = 0;
  for (;;) {
    const size_t begin = turn.find('{', at);
    const std::string_view between = turn.substr(at, begin - at);
    const bool separates = !parsed.calls.empty() && only_separates(between);
    if (!separates) parsed.content += without_python_tag(between);
    if (begin == turn.npos) return parsed;

    at = begin;
    const std::optional<SaidObject> object = read_json_object_at(turn, at);
    const std::string* arguments = nullptr;
    if (object) {
      arguments = object->find("arguments");
      if (arguments == nullptr) arguments = object->find("parameters");
    }
    std::optional<ToolCall> call;
    if (arguments != nullptr) call = call_of(*object, *arguments);
    if (!call) {
      ParsedTurn text = malformed_turn();
      text.malformed = !parsed.calls.empty() || begins_object(turn.substr(begin));
      text.content = turn;
      return text;
    }
    parsed.calls.push_back(std::move(*call));
  }
}

}  // namespace retort::models::detail
