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

TEST(ChatTemplate, RendersToolsVariablesAndADayAsTransformers) {
  const Json golden_file = read_json(golden("settings.json"));
  int64_t compared = 0;
  for (const auto& one : golden_file["templates"]) {
    const auto bare = ChatTemplate::from_source(one["template"], "", "");
    for (const auto& entry : one["cases"]) {
      const Json& tools = golden_file["tools"][entry["tools"].get<size_t>()];
      const auto number = entry["chat"].get<size_t>();
      SCOPED_TRACE(one["name"].get<std::string>() + " " + entry["variables"].dump() + " chat " +
                   std::to_string(number) + " tools " + tools.dump());

      // A run's variables and day; the tools are those of a row.
      const auto chat =
          bare.with({.variables_json = entry["variables"].dump(), .day = golden_file["day"]});
      const std::string row = tools.is_null() ? "{}" : Json{{"tools", tools}}.dump();
      const std::string messages = golden_file["chats"][number].dump();
      EXPECT_EQ(chat.render(messages, number == 0, row).text, entry["text"].get<std::string>());

      // A row may have variables of its own.
      Json own = entry["variables"];
      if (!tools.is_null()) own["tools"] = tools;
      const auto dated = bare.with({.day = golden_file["day"]});
      EXPECT_EQ(dated.render(messages, number == 0, own.dump()).text,
                entry["text"].get<std::string>());
      ++compared;
    }
  }
  EXPECT_GE(compared, 40);
}

TEST(ChatTemplate, PrintsTheDayThatItIsGiven) {
  const auto bare = ChatTemplate::from_source(
      "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%H:%M') }}", "", "");
  const auto then = bare.with({.day = "1999-12-31"});
  EXPECT_EQ(then.render(kChat, false).text, "31 Dec 1999 00:00");
  EXPECT_EQ(tokenize_chat(Tokenizer::load(golden("qwen")), then, kChat, "{}").ids.empty(), false);
  EXPECT_NE(bare.render(kChat, false).text, then.render(kChat, false).text);

  // The day is part of what the rendering is, where the template prints one.
  EXPECT_NE(then.fingerprint(), bare.fingerprint());
  EXPECT_NE(then.fingerprint(), bare.with({.day = "2000-01-01"}).fingerprint());
  const auto undated = ChatTemplate::from_source("{{ messages[0].content }}", "", "");
  EXPECT_EQ(undated.with({.day = "1999-12-31"}).fingerprint(), undated.fingerprint());
  EXPECT_NE(undated.with({.variables_json = R"({"a": 1})"}).fingerprint(), undated.fingerprint());
  for (const char* wrong : {"31.12.1999", "1999-02-30", "today"})
    EXPECT_NE(test::message_of([&] { bare.with({.day = wrong}); }).find(wrong), std::string::npos);
}

TEST(ChatTemplate, VariablesHideSpecialTokensButNotTheConversation) {
  const auto bare =
      ChatTemplate::from_source("{{ bos_token }}{{ messages[0].content }}{{ x }}", "B", "");
  EXPECT_EQ(bare.with({.variables_json = R"({"bos_token": "C", "x": [1, true]})"})
                .render(kChat, false)
                .text,
            "Chi[1, True]");
  EXPECT_EQ(bare.with({.variables_json = R"({"x": 1})"}).render(kChat, false, R"({"x": 2})").text,
            "Bhi2")
      << "a row's own values go before those of all rows";
  for (const char* taken : {"messages", "add_generation_prompt"}) {
    const std::string variables = std::string("{\"") + taken + "\": 1}";
    EXPECT_NE(test::message_of([&] { bare.with({.variables_json = variables}); }).find(taken),
              std::string::npos);
    EXPECT_NE(test::message_of([&] { bare.render(kChat, false, variables); }).find(taken),
              std::string::npos);
  }
  test::message_of([&] { bare.with({.variables_json = "[]"}); });
  test::message_of([&] { bare.render(kChat, false, "3"); });
}

TEST(ChatTemplate, TokenizesAndMasksAsTransformers) {
  // A mask of null: the template has no marks, and renders a beginning differently on its own.
  int compared = 0;
  int located = 0;
  for (const Json chats = read_json(golden("chats.json"))["chats"]; const auto& chat : chats) {
    const auto source = ChatTemplate::from_source(chat["template"], chat["bos"], chat["eos"]);
    const auto tokenizer = Tokenizer::load(golden(chat["tokenizer"]));
    for (const auto& entry : chat["cases"]) {
      const std::string messages = entry["messages"].dump();
      SCOPED_TRACE(chat["name"].get<std::string>() + ": " + messages);
      if (entry.contains("error")) {
        test::message_of([&] { tokenize_chat(tokenizer, source, messages); });
      } else if (entry["mask"].is_null()) {
        const auto tokens = tokenize_chat(tokenizer, source, messages);
        EXPECT_EQ(tokens.ids, entry["ids"].get<std::vector<int32_t>>());
        ++located;
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
  EXPECT_GT(located, 5);
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
  EXPECT_EQ(tokens.text, "a🙂b");
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    EXPECT_EQ(tokens.assistant[i], i > 0 && i + 1 < tokens.ids.size()) << i;
  }
}

TEST(ChatTemplate, MentionsWhatItMayPrintOfItself) {
  const auto bare = ChatTemplate::from_source("{{ one }} two", "", "");
  EXPECT_TRUE(bare.mentions("two"));
  EXPECT_FALSE(bare.mentions("three"));
  EXPECT_TRUE(bare.with({.variables_json = R"({"one": "three"})"}).mentions("three"));
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
  // transformers takes the one for tools where there are tools, an empty list of them, too.
  const std::string tools = R"({"tools": [{"name": "f"}]})";
  write_file_atomically(config, R"({"chat_template": [{"name": "tool_use", "template":)"
                                R"( "\nT{{ tools|length }} \n"},)"
                                R"( {"name": "default", "template": "\n\n  D\n  \n"}]})");
  const auto named = ChatTemplate::load(folder.path());
  EXPECT_EQ(named.render(kChat, false).text, "\n\n  D\n  ");
  EXPECT_EQ(named.render(kChat, false, R"({"tools": null})").text, "\n\n  D\n  ");
  EXPECT_EQ(named.render(kChat, false, tools).text, "\nT1 ");
  EXPECT_EQ(named.render(kChat, false, R"({"tools": []})").text, "\nT0 ");
  EXPECT_TRUE(named.mentions("D\n") && named.mentions("length"));

  // chat_template.jinja comes first, with the one for tools beside it.
  write_file_atomically(folder.path() / "chat_template.jinja",
                        "J{% generation %}{% endgeneration %}");
  const auto jinja = ChatTemplate::load(folder.path());
  EXPECT_EQ(jinja.render(kChat, false, tools).text, "J");
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  write_file_atomically(folder.path() / "additional_chat_templates" / "tool_use.jinja", "U");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kChat, false, tools).text, "U");
  EXPECT_EQ(ChatTemplate::load(folder.path()).render(kChat, false).text, "J");
  EXPECT_EQ(jinja.render(kChat, false).text, "J");
  EXPECT_TRUE(jinja.has_generation_marks());

  // No default among them, or no text.
  std::filesystem::remove(folder.path() / "chat_template.jinja");
  std::filesystem::remove_all(folder.path() / "additional_chat_templates");
  write_file_atomically(config, R"({"chat_template": [{"name": "rag", "template": "T"}]})");
  EXPECT_NE(test::message_of([&] { ChatTemplate::load(folder.path()); }).find("rag"),
            std::string::npos);
  write_file_atomically(config, R"({"chat_template": 3})");
  test::message_of([&] { ChatTemplate::load(folder.path()); });
}

TEST(ChatTemplate, WithoutMarksAnAnswerThatStandsElsewhereTooIsRefused) {
  const auto tokenizer = Tokenizer::load(golden("gpt2"));
  // Only the last answer is shown whole: its beginning renders differently on its own.
  const auto chat = ChatTemplate::from_source(
      "{% for m in messages %}{{ m.role }}:{{ m.content if loop.last else '...' }}\n{% endfor %}",
      "", "");
  EXPECT_EQ(tokenize_chat(tokenizer, chat, R"([{"role": "user", "content": "q"}])").assistant,
            std::vector<uint8_t>(tokenizer.encode("user:q\n", false).size(), 0));
  EXPECT_EQ(tokenize_chat(tokenizer, chat, kChat).spans.size(), 1u);

  // Repeated behind the next question, it cannot be told from it.
  const auto echoing = ChatTemplate::from_source(
      "{% for m in messages %}{{ m.content }}{% if loop.index0 > 1 %}{{ messages[1].content }}"
      "{% endif %}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
      "", "");
  const auto text = test::message_of([&] {
    tokenize_chat(tokenizer, echoing,
                  R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                      {"role": "user", "content": "r"}])");
  });
  EXPECT_NE(text.find("message 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace retort::models
