#include "models/text/detail/call_formats.h"

namespace retort::models::detail {
namespace {

constexpr std::string_view kThought = "<think>";
constexpr std::string_view kThoughtEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";

struct Tag {
  size_t at = std::string_view::npos;  // npos: there is no more
  std::string_view text;
};

// Looks at each "<" once, so that a turn of many tags of one kind is read in linear time.
Tag next_tag(std::string_view turn, size_t from) {
  for (size_t at = turn.find('<', from); at != turn.npos; at = turn.find('<', at + 1))
    for (const std::string_view tag : {kThought, kThoughtEnd, kCall})
      if (turn.substr(at).starts_with(tag)) return {at, tag};
  return {};
}

}  // namespace

ParsedTurn tagged_calls(std::string_view turn, bool in_thought, const ReadCall& read) {
  ParsedTurn parsed;
  size_t at = 0;

  // A thought that the prompt opened. One that never ends is none: the model went on without it.
  const Tag first = next_tag(turn, 0);
  const size_t end =
      in_thought ? turn.find(kThoughtEnd) : (first.text == kThoughtEnd ? first.at : turn.npos);
  if (end != turn.npos) {
    parsed.thought = turn.substr(0, end);
    at = end + kThoughtEnd.size();
  }

  for (;;) {
    const Tag tag = next_tag(turn, at);
    parsed.content += turn.substr(at, tag.at - at);
    if (tag.at == turn.npos) return parsed;
    const size_t inside = tag.at + tag.text.size();

    if (tag.text == kThoughtEnd) {
      parsed.content += tag.text;  // the end of no thought: text
      at = inside;
    } else if (tag.text == kThought) {
      // As in transformers, a thought without an end goes on to the turn's.
      const size_t behind = turn.find(kThoughtEnd, inside);
      parsed.thought += turn.substr(inside, behind - inside);
      if (behind == turn.npos) return parsed;
      at = behind + kThoughtEnd.size();
    } else {
      const size_t behind = turn.find(kCallEnd, inside);
      if (behind == turn.npos) return malformed_turn();
      std::optional<ToolCall> call = read(turn.substr(inside, behind - inside));
      if (!call) return malformed_turn();
      parsed.calls.push_back(std::move(*call));
      at = behind + kCallEnd.size();
    }
  }
}

}  // namespace retort::models::detail
