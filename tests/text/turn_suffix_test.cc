// What stands between two turns, against TRL 1.16's own code in every chat template that it ships
// (make_turn_suffix_goldens.py), and what is refused.
#include "models/text/turn_suffix.h"

#include <cstdlib>
#include <map>

#include "base/file.h"
#include "base/hash.h"
#include "models/text/training_template.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

// A template of one family, small enough to be read here.
constexpr const char* kChatMl =
    "{%- for m in messages -%}"
    "{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') -}}"
    "{%- for c in m.tool_calls or [] -%}{{- c.function.arguments | tojson -}}{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

constexpr const char* kRain = R"([{"role": "tool", "name": "weather", "content": "rain"}])";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

class TurnSuffixes : public ::testing::Test {
 protected:
  ChatTemplate open(const std::string& source) const {
    const auto special = tokenizer_.id_to_token(tokenizer_.eos_id());
    return ChatTemplate::from_source(source, special, special).with({.day = "2024-02-29"});
  }
  TurnSuffix suffix(const std::string& source) const { return {open(source), tokenizer_}; }
  std::string text(const std::vector<int32_t>& ids) const { return tokenizer_.decode(ids, false); }
  std::string refusal(const std::string& source) const {
    return test::message_of([&] { suffix(source); });
  }

  // By name: those that the repository holds, their training variants, and, where
  // RETORT_TRL_TEMPLATES names the folder, all others.
  std::map<std::string, std::string> sources() const {
    std::map<std::string, std::string> all;
    const Json templates = read_json(golden("training.json"));
    for (const char* list : {"known", "plain"})
      for (const Json& each : templates[list]) {
        const std::string name = each["name"];
        all[name] = each["template"];
        if (const auto variant = training_template(all[name]))
          all[name + "_variant"] = variant->source;
      }
    const char* folder = std::getenv("RETORT_TRL_TEMPLATES");
    for (const Json& each : golden_["templates"]) {
      const std::string name = each["name"];
      if (folder == nullptr || all.contains(name)) continue;
      all[name] = read_file(std::filesystem::path(folder) / (name + ".jinja"));
      EXPECT_EQ(sha256_hex(all[name]), each["sha256"].get<std::string>()) << name;
    }
    return all;
  }

  // Tools change what stands before the conversation, and nothing between its turns.
  void compare(const TurnSuffix& joined, const Json& messages, const Json& expected) {
    if (expected.is_null()) return;
    const auto ids = joined.ids(messages.dump());
    EXPECT_EQ(ids, expected.get<std::vector<int32_t>>()) << text(ids) << messages.dump();
    EXPECT_EQ(joined.ids(messages.dump(), kTools), ids);
    ++compared_;
  }

  static constexpr const char* kTools =
      R"({"tools": [{"type": "function", "function": {"name": "weather", "description": "Weather.",
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]})";
  const Json golden_ = read_json(golden("turn_suffixes.json"));
  const Tokenizer tokenizer_ = Tokenizer::load(golden("turns"));
  int64_t compared_ = 0;
};

}  // namespace

TEST_F(TurnSuffixes, AreThoseOfTrlInEveryTemplateItShips) {
  const auto all = sources();
  int64_t joined = 0;
  int64_t refused = 0;
  int64_t of_variants = 0;
  for (const Json& each : golden_["templates"]) {
    const std::string name = each["name"];
    const auto source = all.find(name);
    if (source == all.end()) continue;
    SCOPED_TRACE(name);
    const Json& expected = each["suffixes"];
    if (expected.is_null()) {
      EXPECT_NE(refusal(source->second), "");
      ++refused;
      continue;
    }
    ++joined;
    if (expected["by"] != name) ++of_variants;

    const TurnSuffix found = suffix(source->second);
    EXPECT_EQ(tokenizer_.id_to_token(found.end_of_turn()), expected["end"].get<std::string>());
    for (size_t i = 0; i < golden_["results"].size(); ++i)
      compare(found, golden_["results"][i], expected["results"][i]);
    for (size_t i = 0; i < golden_["users"].size(); ++i)
      compare(found, golden_["users"][i], expected["users"][i]);

    // Our variant for training prints the same text.
    if (const auto variant = all.find(name + "_variant"); variant != all.end())
      compare(suffix(variant->second), golden_["results"][1], expected["results"][1]);
  }
  const bool with_others = std::getenv("RETORT_TRL_TEMPLATES") != nullptr;
  EXPECT_EQ(joined + refused, with_others ? static_cast<int64_t>(golden_["templates"].size()) : 28);
  EXPECT_GE(joined, 16);
  EXPECT_GE(of_variants, 1) << "the original Qwen3 keeps no prefixes, and is joined all the same";
  EXPECT_GE(compared_, joined * 3);
}

TEST_F(TurnSuffixes, StandBehindTheTokenThatEndsATurn) {
  const TurnSuffix joined = suffix(kChatMl);
  EXPECT_EQ(tokenizer_.id_to_token(joined.end_of_turn()), "<|im_end|>");
  EXPECT_FALSE(joined.opens_thought());
  EXPECT_EQ(text(joined.ids(kRain)), "\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(text(joined.ids(R"([{"role": "user", "content": "and?"}])")),
            "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n");

  // What the prompt for a turn begins is the suffix's, a thought or an empty one.
  const std::string prompt = "assistant\\n' -}}{%- endif";
  const auto with_prompt = [&](const std::string& more) {
    return suffix(replaced(kChatMl, prompt, "assistant\\n" + more + "' -}}{%- endif"));
  };
  EXPECT_TRUE(with_prompt("<think>\\n").opens_thought());
  const TurnSuffix empty_thought = with_prompt("<think>\\n\\n</think>\\n\\n");
  EXPECT_FALSE(empty_thought.opens_thought());
  EXPECT_EQ(text(empty_thought.ids(kRain)),
            "\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

// As Qwen3 has it: without thinking, every turn begins behind an empty thought.
TEST_F(TurnSuffixes, TakeTheVariablesOfTheConversation) {
  const std::string prompt = "assistant\\n' -}}{%- endif";
  const TurnSuffix joined = suffix(
      replaced(kChatMl, prompt,
               "assistant\\n' + ('<think>\\n\\n</think>\\n\\n' if enable_thinking is defined "
               "and not enable_thinking else '<think>\\n') -}}{%- endif"));
  const char* quiet = R"({"enable_thinking": false})";
  const std::string before = "\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(text(joined.ids(kRain)), before + "<think>\n");
  EXPECT_EQ(text(joined.ids(kRain, quiet)), before + "<think>\n\n</think>\n\n");
  EXPECT_TRUE(joined.opens_thought());
  EXPECT_TRUE(joined.opens_thought(R"({"enable_thinking": true})"));
  EXPECT_FALSE(joined.opens_thought(quiet));
}

// What TRL cannot do with this template: it prints the thought of the last turn alone, so that a
// conversation with one more message does not begin with the shorter one.
TEST_F(TurnSuffixes, NeedNoTemplateThatKeepsPrefixes) {
  const std::string source =
      replaced(kChatMl, "(m.content or '')",
               "('<think>\\n\\n</think>' if m.role == 'assistant' and loop.last else '') + "
               "(m.content or '')");
  EXPECT_EQ(suffix(source).ids(kRain), suffix(kChatMl).ids(kRain));
}

TEST_F(TurnSuffixes, TheResultsNameIsTheCalls) {
  const std::string source =
      replaced(kChatMl, "(m.content or '') -}}",
               "(m.content or '') -}}{%- if m.role == 'tool' -%}"
               "{{- ' of ' + messages[1].tool_calls[0].function.name + ' ' + "
               "messages[1].tool_calls[0].id -}}{%- endif -%}");
  EXPECT_EQ(text(suffix(source).ids(
                R"([{"role": "tool", "name": "add", "tool_call_id": "c7", "content": "5"}])")),
            "\n<|im_start|>tool\n5 of add c7<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(TurnSuffixes, ATemplateThatTakesNoObjectForArgumentsIsGivenATextOfThem) {
  const std::string source =
      replaced(kChatMl, "c.function.arguments | tojson", "'x' + c.function.arguments");
  EXPECT_EQ(suffix(source).ids(kRain), suffix(kChatMl).ids(kRain));
}

TEST_F(TurnSuffixes, TemplatesThatJoinNoTurnsAreRefusedByReason) {
  EXPECT_NE(refusal(replaced(kChatMl, "<|im_end|>", "")).find("no end-of-turn token"),
            std::string::npos);
  const std::string left_out = refusal(replaced(kChatMl, "c.function.arguments", "'f'"));
  EXPECT_EQ(left_out.find("turns with calls of tools cannot be joined: the chat template leaves "
                          "out an assistant's tool calls; episodes of several turns need one"),
            0u)
      << left_out;
  EXPECT_NE(refusal(replaced(kChatMl, "<|im_end|>", "<end_of_turn>")).find("\"<end_of_turn>\""),
            std::string::npos);
  EXPECT_NE(refusal("{{ raise_exception('no tools here') }}").find("no tools here"),
            std::string::npos);

  // As Gemma 4 has it: the result stands in the turn of the call.
  EXPECT_NE(refusal("{%- for m in messages -%}{{- m.content or '' -}}"
                    "{%- for c in m.tool_calls or [] -%}{{- c.function.arguments | tojson -}}"
                    "{%- endfor -%}{%- endfor -%}<|im_end|>")
                .find("between an assistant's tool call and its result"),
            std::string::npos);
  const ChatTemplate none = ChatTemplate::load(golden("wordpiece"));
  test::expect_refused("no chat template", [&] { TurnSuffix(none, tokenizer_); });
}

TEST_F(TurnSuffixes, OtherMessagesAreRefused) {
  const TurnSuffix joined = suffix(kChatMl);
  for (const char* messages :
       {"", "[]", "{}", "[1]", R"([{"content": "x"}])",
        R"([{"role": "assistant", "content": "x"}])", R"([{"role": 5, "content": "x"}])"})
    test::expect_refused("no JSON array of messages", [&] { joined.ids(messages); });
  EXPECT_EQ(test::code_of([&] { joined.ids(kRain, "[]"); }), ErrorCode::kInvalidArgument);
  const std::string deep = std::string(300, '[') + std::string(300, ']');
  test::expect_refused("no JSON array of messages", [&] { joined.ids(deep); });
}

}  // namespace retort::models
