// Decodes: what a model says where it may call tools. The first byte says in which format, and
//   whether a thought was opened.
// Holds: arguments are JSON objects of UTF-8 on one line; a malformed turn has no calls; what was
//   read, written in the hermes format, is read as the same calls.
#include "models/text/tool_calls.h"

#include "base/json_text.h"
#include "base/printable.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::tool_calls {
namespace {

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
        "o": {"type": ["object", "null"]}, "a": {"anyOf": [{"type": "array"}]}}}}}])";

std::string as_hermes(const std::vector<models::ToolCall>& calls) {
  std::string turn;
  for (const models::ToolCall& call : calls)
    turn += "<tool_call>{\"name\": " + json_quote(call.name) + ", \"arguments\": " +
            call.arguments + "}</tool_call>";
  return turn;
}

bool decode(std::string_view bytes) {
  ByteSource source(bytes);
  const uint8_t kind = source.byte();
  const auto format = static_cast<models::ToolFormat>(kind % 4);
  const std::string_view turn = source.rest();
  const auto parsed = models::parse_tool_calls(format, turn, kTools, (kind & 4) != 0);
  expect(!parsed.malformed || parsed.calls.empty(), "half of a turn");
  if (parsed.malformed) return false;

  bool has_tag = false;  // in a text of the calls, where the hermes format cannot have it
  for (const auto& call : parsed.calls) {
    expect(is_utf8(call.arguments) && is_utf8(call.name), "no UTF-8");
    expect(call.arguments.front() == '{' && call.arguments.back() == '}', "no object");
    expect(call.arguments.find('\n') == std::string::npos, "several lines");
    expect(json_nesting(call.arguments) <= kMaxJsonNesting, "nests too deep");
    has_tag = has_tag || (call.name + call.arguments).find("</tool_call>") != std::string::npos;
  }
  const std::string again = as_hermes(parsed.calls);
  if (has_tag || again.size() > models::kMaxTurnBytes || parsed.calls.empty()) return true;
  const auto same = models::parse_tool_calls(models::ToolFormat::kHermes, again);
  expect(same.calls == parsed.calls, "other calls");
  return true;
}

std::vector<Seed> seeds() {
  const auto seed = [](uint8_t kind, std::string_view text) {
    return ByteSink().byte(kind).raw(text).bytes();
  };
  return {
      {"hermes",
       seed(0, "a <think>b</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "
               "[1.5e-3, null, true, \"\\u00e9\\ud83d\\ude42\"]}}\n</tool_call>")},
      {"hermes_thought", seed(4, "b</think><tool_call>{\"name\": \"f\"}</tool_call>")},
      {"qwen3_xml",
       seed(1, "<tool_call>\n<function=f>\n<parameter=i>\n-7\n</parameter>\n<parameter=n>\n1_0.5e3"
               "\n</parameter>\n<parameter=o>\n{\"k\": []}\n</parameter>\n</function>\n"
               "</tool_call>")},
      {"llama3_json",
       seed(2, "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": \"y\"}}; "
               "{\"name\": \"g\", \"arguments\": {}}")},
      {"pythonic",
       seed(3, "[f(x=-1, y=[0x1F, .5, (1,), {'k': r'\\d'}, {2}], z='''a\\x41''' \"b\"), "
               "g(n=None)]")},
      {"pythonic_tokens", seed(3, "<|python_start|>[f(x=1)]<|python_end|>")},
  };
}

}  // namespace

Target target() { return {"tool_calls", decode, seeds}; }

}  // namespace retort::fuzz::tool_calls
