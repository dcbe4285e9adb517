// What the parsers of tool calls read, against transformers' response templates and vLLM's parsers
// (make_tool_call_goldens.py), and the bounds of what they take.
#include "models/text/tool_calls.h"

#include <chrono>

#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

ToolFormat format_named(const std::string& name) {
  for (const auto& [text, format] : EnumNames<ToolFormat>::values)
    if (text == name) return format;
  throw Error(ErrorCode::kInvalidArgument, "no format " + name);
}

// The calls as the golden file has them: [{"name": ..., "arguments": {...}}].
Json calls_of(const ParsedTurn& parsed) {
  Json calls = Json::array();
  for (const ToolCall& call : parsed.calls) {
    Json each = Json::object();
    each["name"] = call.name;
    each["arguments"] = Json::parse(call.arguments);
    calls.push_back(std::move(each));
  }
  return calls;
}

void expect_answer(const ParsedTurn& parsed, const Json& expected) {
  EXPECT_EQ(calls_of(parsed), expected["calls"]);
  const auto get = [&](const char* key, auto otherwise) { return expected.value(key, otherwise); };
  EXPECT_EQ(parsed.content, get("content", parsed.content));
  EXPECT_EQ(parsed.thought, get("thought", parsed.thought));
  EXPECT_EQ(parsed.malformed, get("malformed", parsed.malformed));
}

std::string repeated(std::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i)
    all += text;
  return all;
}

std::string hermes(const std::string& arguments) {
  return R"(<tool_call>{"name": "f", "arguments": )" + arguments + "}</tool_call>";
}

std::string arguments_of(const std::string& turn, ToolFormat format = ToolFormat::kHermes) {
  const ParsedTurn parsed = parse_tool_calls(format, turn);
  return parsed.calls.size() == 1 ? parsed.calls[0].arguments : "no call: " + parsed.content;
}

}  // namespace

// Of each turn the answers of both others, where they agree; where they do not, ours, which the
// script has with its reason.
TEST(ToolCalls, AreThoseOfTransformersAndVllm) {
  const Json golden_calls = read_json(golden("tool_calls.json"));
  const std::string tools = golden_calls["tools"].dump();
  int64_t by_both = 0;
  int64_t ours = 0;
  for (const Json& each : golden_calls["cases"]) {
    const std::string turn = each["turn"];
    SCOPED_TRACE(each["format"].get<std::string>() + ": " + turn.substr(0, 300));
    const ParsedTurn parsed = parse_tool_calls(format_named(each["format"]), turn, tools);
    if (each.contains("ours")) {
      SCOPED_TRACE(each["why"].get<std::string>());
      expect_answer(parsed, each["ours"]);
      ++ours;
      continue;
    }
    if (each.contains("transformers")) expect_answer(parsed, each["transformers"]);
    expect_answer(parsed, each["vllm"]);
    EXPECT_FALSE(parsed.malformed);
    ++by_both;
  }
  EXPECT_EQ(by_both, 90);
  EXPECT_EQ(ours, 93);
}

TEST(ToolCalls, ArgumentsAreWrittenOnOneLineWithTheDigitsOfTheModel) {
  EXPECT_EQ(arguments_of(hermes("{\n \"a\" : [ 1 ,\t2 ],\r\n\"b\": {} }")),
            R"({"a": [1, 2], "b": {}})");
  EXPECT_EQ(arguments_of(hermes(R"({"i": 123456789012345678901234567890, "n": 1.50, "e": 1E+2})")),
            R"({"i": 123456789012345678901234567890, "n": 1.50, "e": 1E+2})");
  EXPECT_EQ(arguments_of(hermes(R"({"\u0061": "\u00e9\ud83d\ude42\n\/\u0001"})")),
            "{\"a\": \"é🙂\\n/\\u0001\"}");
  EXPECT_EQ(arguments_of("[f(i=123456789012345678901234567890, n=5., z=(1,))]",
                         ToolFormat::kPythonic),
            R"({"i": 123456789012345678901234567890, "n": 5.0, "z": [1]})");
}

TEST(ToolCalls, ASchemaTellsTypesOfXmlAndNothingElseDoes) {
  const std::string turn =
      "<tool_call><function=f><parameter=x>\n7\n</parameter></function></tool_call>";
  const auto arguments = [&](const std::string& tools) {
    return parse_tool_calls(ToolFormat::kQwen3Xml, turn, tools).calls.at(0).arguments;
  };
  const auto typed = [&](const std::string& schema) {
    return arguments(R"([{"function": {"name": "f", "parameters": {"properties": {"x": )" + schema +
                     "}}}}]");
  };
  EXPECT_EQ(arguments("[]"), R"({"x": "7"})");
  EXPECT_EQ(typed(R"({"type": "integer"})"), R"({"x": 7})");
  EXPECT_EQ(typed(R"({"type": ["null", "number"]})"), R"({"x": 7})");
  EXPECT_EQ(typed(R"({"type": "string"})"), R"({"x": "7"})");
  EXPECT_EQ(typed(R"({"type": 5, "oneOf": [{"type": "integer"}, 3]})"), R"({"x": 7})");
  EXPECT_EQ(typed("true"), R"({"x": "7"})");
  EXPECT_EQ(arguments(R"([1, {"name": "f"}, {"function": {"name": 5}}, {"function": 1}])"),
            R"({"x": "7"})");

  for (const char* no_tools : {"", "{}", "[", "null"})
    EXPECT_NE(test::message_of([&] { arguments(no_tools); }).find("no JSON array"),
              std::string::npos);
  const std::string deep = repeated("[", 200) + repeated("]", 200);
  EXPECT_NE(test::message_of([&] { arguments(deep); }).find("deeper than"), std::string::npos);
}

TEST(ToolCalls, AThoughtThatThePromptOpenedHasNoCalls) {
  const std::string call = hermes("{}");
  const std::string turn = "I may write " + call + " here.\n</think>\n\nSo: " + call;
  EXPECT_EQ(parse_tool_calls(ToolFormat::kHermes, turn).calls.size(), 2u);

  const ParsedTurn parsed = parse_tool_calls(ToolFormat::kHermes, turn, "[]", /*in_thought=*/true);
  EXPECT_EQ(parsed.calls.size(), 1u);
  EXPECT_EQ(parsed.content, "So:");
  EXPECT_EQ(parsed.thought, "I may write " + call + " here.");

  // One without an end: the model went on without a thought.
  EXPECT_EQ(parse_tool_calls(ToolFormat::kHermes, call, "[]", true).calls.size(), 1u);
}

TEST(ToolCalls, AMalformedTurnIsTextAsAWhole) {
  const std::string good = hermes("{}");
  for (const std::string& turn : {good + "<tool_call>", good + "<tool_call>x</tool_call>",
                                  "<think>a</think>" + good + "<tool_call>\xff</tool_call>"}) {
    const ParsedTurn parsed = parse_tool_calls(ToolFormat::kHermes, turn + "\n");
    EXPECT_TRUE(parsed.malformed);
    EXPECT_TRUE(parsed.calls.empty());
    EXPECT_EQ(parsed.thought, "");
    EXPECT_EQ(parsed.content, turn);
  }
}

TEST(ToolCalls, DepthAndSizeAreBounded) {
  const auto nested = [](size_t depth) {
    return R"({"x": )" + repeated("[", depth) + repeated("]", depth) + "}";
  };
  EXPECT_EQ(arguments_of(hermes(nested(98))), nested(98));
  EXPECT_TRUE(parse_tool_calls(ToolFormat::kHermes, hermes(nested(99))).malformed);
  EXPECT_TRUE(parse_tool_calls(ToolFormat::kHermes, hermes(nested(400'000))).malformed);
  for (const char* open : {"[", "(", "{", "{'a':", "(1,", "-"})
    EXPECT_TRUE(
        parse_tool_calls(ToolFormat::kPythonic, "[f(x=" + repeated(open, 100'000)).malformed);

  const std::string large = hermes(R"({"s": ")" + std::string(kMaxTurnBytes - 100, 'a') + "\"}");
  EXPECT_EQ(parse_tool_calls(ToolFormat::kHermes, large).calls.size(), 1u);
  EXPECT_TRUE(parse_tool_calls(ToolFormat::kHermes, large + repeated(" ", 100)).malformed);

  const std::string digits(4301, '9');
  EXPECT_TRUE(parse_tool_calls(ToolFormat::kHermes, hermes("{\"x\": " + digits + "}")).malformed);
}

// What would take minutes if a megabyte were looked at once for each of its letters.
TEST(ToolCalls, TimeIsLinear) {
  const auto begin = std::chrono::steady_clock::now();
  const auto fill = [](std::string_view text) {
    return repeated(text, kMaxTurnBytes / text.size() - 10);
  };
  std::string members;
  for (int i = 0; i < 60'000; ++i)
    members += "\"" + std::to_string(i) + "\": 1, ";
  const std::string turns[] = {fill("<"),        fill("<think>"), fill("</think>"),
                               fill("{"),        fill("<tool_call>{}"),
                               hermes("{" + members + "\"x\": 1}"),
                               "<tool_call><function=f>" + fill("<parameter=")};
  for (const std::string& turn : turns)
    for (const auto& [name, format] : EnumNames<ToolFormat>::values)
      parse_tool_calls(format, turn);

  std::string arguments;
  for (int i = 0; i < 60'000; ++i)
    arguments += "a" + std::to_string(i) + "=1, ";
  EXPECT_EQ(parse_tool_calls(ToolFormat::kPythonic, "[f(" + arguments + ")]").calls.size(), 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// Each template of TRL that the repository holds, by what it teaches.
TEST(ToolCalls, FormatsAreFoundInTemplates) {
  const auto names = [](const std::string& source) {
    std::string all;
    for (const ToolFormat format : tool_formats_of(source))
      for (const auto& [name, value] : EnumNames<ToolFormat>::values)
        if (value == format) all += (all.empty() ? "" : " ") + std::string(name);
    return all;
  };
  const auto expected = [](const std::string& name) -> std::string {
    for (const char* json : {"qwen2_5", "qwen3", "qwen3_vl", "qwen3_instruct_2507"})
      if (name == json) return "hermes";
    if (name.starts_with("qwen3_") || name.starts_with("nemotron_3")) return "qwen3_xml";
    return name == "llama3_1" || name == "llama3_2" ? "llama3_json" : "";
  };

  const Json templates = read_json(golden("training.json"));
  size_t found = 0;
  for (const char* list : {"known", "plain"})
    for (const Json& each : templates[list]) {
      const std::string name = each["name"];
      EXPECT_EQ(names(each["template"]), expected(name)) << name;
      if (!expected(name).empty()) ++found;
    }
  EXPECT_EQ(found, 14u);

  EXPECT_EQ(names(R"({{ "use [func_name1(params_name1=params_value1...)]" }})"), "pythonic");
  EXPECT_EQ(names("<tool_call>\n{\"name\": x} or <function=f><parameter=p>"), "hermes qwen3_xml");
  EXPECT_EQ(names(""), "");
}

}  // namespace retort::models
