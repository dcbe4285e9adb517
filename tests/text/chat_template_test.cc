// Chat templates against transformers' apply_chat_template, byte by byte and token by token.
#include "models/text/chat_template.h"

#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

constexpr const char* kChat =
    R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}])";

TEST(ChatTemplate, RendersAsTransformers) {
  const Json chats = read_json(golden("chats.json"))["chats"];
  ASSERT_EQ(chats.size(), 9u);
  for (const auto& chat : chats) {
    const auto source = ChatTemplate::from_source(chat["template"], chat["bos"], chat["eos"]);
    EXPECT_TRUE(source.exists());
    EXPECT_EQ(source.has_generation_marks(), chat["marked"].get<bool>()) << chat["name"];
    EXPECT_EQ(source.source(), chat["template"].get<std::string>());
    for (const auto& entry : chat["cases"]) {
      const std::string messages = entry["messages"].dump();
      SCOPED_TRACE(chat["name"].get<std::string>() + ": " + messages);

      // What transformers refuses is refused; where the template says why, in its words.
      if (entry.contains("error")) {
        const auto text = test::message_of([&] { source.render(messages, false); });
        const std::string expected = entry["error"];
        if (expected.starts_with("After") || expected.starts_with("Only")) {
          EXPECT_NE(text.find(expected), std::string::npos) << text;  // the template's own words
        }
        continue;
      }

      // All else is the same text, with and without the prompt for an answer.
      try {
        EXPECT_EQ(source.render(messages, false).text, entry["text"].get<std::string>());
        EXPECT_EQ(source.render(messages, true).text, entry["prompt"].get<std::string>());
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

TEST(ChatTemplate, TokenizesAndMasksAsTransformers) {
  // A mask of null: the template has no marks, and renders a prefix differently on its own.
  int compared = 0;
  int refused = 0;
  for (const Json chats = read_json(golden("chats.json"))["chats"]; const auto& chat : chats) {
    const auto source = ChatTemplate::from_source(chat["template"], chat["bos"], chat["eos"]);
    const auto tokenizer = Tokenizer::load(golden(chat["tokenizer"]));
    for (const auto& entry : chat["cases"]) {
      const std::string messages = entry["messages"].dump();
      SCOPED_TRACE(chat["name"].get<std::string>() + ": " + messages);
      if (entry.contains("error")) {
        test::message_of([&] { tokenize_chat(tokenizer, source, messages); });
      } else if (entry["mask"].is_null()) {
        const auto text = test::message_of([&] { tokenize_chat(tokenizer, source, messages); });
        EXPECT_NE(text.find("generation"), std::string::npos) << text;
        ++refused;
      } else {
        const auto tokens = tokenize_chat(tokenizer, source, messages);
        EXPECT_EQ(tokens.ids, entry["ids"].get<std::vector<int32_t>>());
        EXPECT_EQ(tokens.assistant, entry["mask"].get<std::vector<uint8_t>>());
        ++compared;
      }
    }
  }

  // The goldens have both kinds.
  EXPECT_GT(compared, 80);
  EXPECT_GT(refused, 5);
}

TEST(ChatTemplate, SpansAreBytesInsideTheMarks) {
  const auto chat = ChatTemplate::from_source(
      "{% for m in messages %}[{{ m.role }}] {% if m.role == 'assistant' %}{% generation %}é{{ "
      "m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}",
      "", "");
  const auto rendered = chat.render(kChat, false);
  EXPECT_EQ(rendered.text, "[user] hi;[assistant] \u00e9yo;");
  ASSERT_EQ(rendered.generation_spans.size(), 1u);
  const auto [begin, end] = rendered.generation_spans[0];
  EXPECT_EQ(rendered.text.substr(begin, end - begin), "\u00e9yo");
}

TEST(ChatTemplate, ALastCharacterOfSeveralTokensIsWhollyTheAssistants) {
  const auto tokenizer = Tokenizer::load(golden("gpt2"));
  ASSERT_GT(tokenizer.encode("🙂", false).size(), 1u);
  const auto chat = ChatTemplate::from_source("a{% generation %}🙂{% endgeneration %}b", "", "");
  const auto tokens = tokenize_chat(tokenizer, chat, kChat);
  ASSERT_EQ(tokens.ids.size(), 2 + tokenizer.encode("🙂", false).size());
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    EXPECT_EQ(tokens.assistant[i], i > 0 && i + 1 < tokens.ids.size()) << i;
  }
}

TEST(ChatTemplate, MarksNeverReachTheText) {
  // The block's text is changed after the block: it cannot be located, and nothing of the marks may
  // be seen.
  const auto captured = ChatTemplate::from_source(
      "{% set t %}{% generation %} x {% endgeneration %}{% endset %}{{ t | length }}{{ t | trim }}",
      "", "");
  EXPECT_NE(test::message_of([&] { captured.render(kChat, false); }).find("generation"),
            std::string::npos);
  const auto moved = ChatTemplate::from_source(
      "{% set t %}{% generation %}x{% endgeneration %}{% endset %}<{{ t }}>", "", "");
  const auto rendered = moved.render(kChat, false);
  EXPECT_EQ(rendered.text, "<x>");
  EXPECT_EQ(rendered.generation_spans, (std::vector<std::pair<size_t, size_t>>{{1, 2}}));
}

TEST(ChatTemplate, RefusesBadSources) {
  for (const Json entries = read_json(golden("chats.json"))["refused"];
       const auto& entry : entries) {
    const std::string source = entry[0];
    const std::string expected = entry[1];
    SCOPED_TRACE(source);
    const auto text =
        test::message_of([&] { ChatTemplate::from_source(source, "", "").render(kChat, false); });
    EXPECT_NE(text.find(expected), std::string::npos) << text;
    EXPECT_NE(text.find("chat template"), std::string::npos) << text;
  }
}

TEST(ChatTemplate, NamesTheLineOfASyntaxError) {
  const auto text =
      test::message_of([] { ChatTemplate::from_source("one\ntwo\r\n{{ 3 + }}\n", "", ""); });
  EXPECT_NE(text.find(":3"), std::string::npos) << text;
}

TEST(ChatTemplate, RefusesBadConversations) {
  const auto chat = ChatTemplate::from_source("{{ messages[0].content }}", "", "");
  for (const char* messages :
       {"", "[]", "{}", "null", "[1]", "[[]]", "[{\"role\": \"user\"", "[\"x\"]",
        "[{\"content\": \"\\ud800\"}]", "[{\"content\": \"\xff\"}]"}) {
    SCOPED_TRACE(messages);
    test::message_of([&] { chat.render(messages, false); });
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  test::message_of([&] { chat.render(deep, false); });
  test::message_of([&] { chat.render(R"([{"content": )" + deep + "}]", false); });
}

TEST(ChatTemplate, EndlessRecursionIsAnError) {
  const auto chat =
      ChatTemplate::from_source("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "", "");
  test::message_of([&] { chat.render(kChat, false); });
}

TEST(ChatTemplate, LoadsFromAFolder) {
  test::TemporaryFolder folder;
  const auto config = folder.path() / "tokenizer_config.json";
  EXPECT_FALSE(ChatTemplate::load(folder.path()).exists());
  EXPECT_FALSE(ChatTemplate::load(folder.path()).has_generation_marks());
  EXPECT_NE(test::message_of([&] {
              ChatTemplate::load(folder.path()).render(kChat, false);
            }).find("no chat template"),
            std::string::npos);

  // From tokenizer_config.json, one template or several with names.
  write_file_atomically(
      config,
      R"({"chat_template": "{{ bos_token }}A{{ eos_token }}", "eos_token": {"content": "E"}})");
  write_file_atomically(folder.path() / "special_tokens_map.json", R"({"bos_token": "B"})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kChat, false).text, "BAE");
  write_file_atomically(config, R"({"chat_template": [{"name": "tool_use", "template": "T"},)"
                                R"( {"name": "default", "template": "D"}]})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kChat, false).text, "D");

  // chat_template.jinja comes first.
  write_file_atomically(folder.path() / "chat_template.jinja",
                        "J{% generation %}{% endgeneration %}");
  const auto jinja = ChatTemplate::load(folder.path());
  EXPECT_EQ(jinja.render(kChat, false).text, "J");
  EXPECT_TRUE(jinja.has_generation_marks());

  // No default among them, or no text.
  std::filesystem::remove(folder.path() / "chat_template.jinja");
  write_file_atomically(config, R"({"chat_template": [{"name": "rag", "template": "T"}]})");
  EXPECT_NE(test::message_of([&] { ChatTemplate::load(folder.path()); }).find("rag"),
            std::string::npos);
  write_file_atomically(config, R"({"chat_template": 3})");
  test::message_of([&] { ChatTemplate::load(folder.path()); });
}

TEST(ChatTemplate, WithoutMarksAChangedPrefixIsRefused) {
  const auto tokenizer = Tokenizer::load(golden("gpt2"));
  // Only the last answer is shown whole: an earlier one renders differently on its own.
  const auto chat = ChatTemplate::from_source(
      "{% for m in messages %}{{ m.role }}:{{ m.content if loop.last else '...' }}\n{% endfor %}",
      "", "");
  EXPECT_EQ(tokenize_chat(tokenizer, chat, R"([{"role": "user", "content": "q"}])").assistant,
            std::vector<uint8_t>(tokenizer.encode("user:q\n", false).size(), 0));
  const auto text = test::message_of([&] { tokenize_chat(tokenizer, chat, kChat); });
  EXPECT_NE(text.find("message 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace retort::models
