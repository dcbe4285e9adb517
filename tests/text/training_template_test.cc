// Every chat template that TRL 1.16 ships, against transformers (make_training_goldens.py): what is
// rendered, its tokens, and which of them TRL's training templates mark; and answers of templates
// without marks.
#include "models/text/training_template.h"

#include <algorithm>
#include <cstdlib>

#include "base/file.h"
#include "base/hash.h"
#include "models/text/chat_template.h"
#include "models/text/named_templates.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

constexpr const char* kAnswered =
    R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])";

using Runs = std::vector<std::pair<size_t, size_t>>;

// Spans that touch are one, and empty ones none.
Runs joined(const Runs& spans) {
  Runs runs;
  for (const auto& [begin, end] : spans) {
    if (begin == end) continue;
    if (!runs.empty() && runs.back().second == begin)
      runs.back().second = end;
    else
      runs.emplace_back(begin, end);
  }
  return runs;
}

Runs runs_of(const std::vector<uint8_t>& mask) {
  Runs spans;
  for (size_t i = 0; i < mask.size(); ++i)
    if (mask[i]) spans.emplace_back(i, i + 1);
  return joined(spans);
}

std::string short_hash(const std::string& text) { return sha256_hex(text).substr(0, 16); }

std::string id_hash(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids)
    text += (text.empty() ? "" : " ") + std::to_string(id);
  return short_hash(text);
}

class TrainingTemplates : public ::testing::Test {
 protected:
  ChatTemplate open(const std::string& source) const {
    const std::string special = golden_["special"];
    return ChatTemplate::from_source(source, special, special).with({.day = golden_["day"]});
  }

  struct Case {
    const Json& conversation;
    std::string messages, row;  // as texts
    const Json& expected;       // null where the template itself refuses it
    std::string trace;
  };

  // Every conversation with every set of tools, and what transformers made of it.
  std::vector<Case> all_cases(const std::string& name, const Json& cases) const {
    std::vector<Case> all;
    for (size_t i = 0; i < golden_["chats"].size(); ++i) {
      // Templates without a place for tools have the first, no tools, alone.
      for (size_t j = 0; j < cases.at(i).size(); ++j) {
        const Json& tools = golden_["tools"][j];
        const std::string row = tools.is_null() ? "{}" : Json{{"tools", tools}}.dump();
        const std::string messages = golden_["chats"][i].dump();
        const std::string with = tools.is_null() ? ": " : " with tools: ";
        all.push_back(
            {golden_["chats"][i], messages, row, cases.at(i).at(j), name + with + messages});
      }
    }
    return all;
  }

  // Texts, ids and masks of every case; what transformers refuses and what we do are counted apart.
  void compare(const std::string& name, const ChatTemplate& chat, const Json& cases) {
    const ChatTemplate training = chat.for_training();
    for (const Case& each : all_cases(name, cases)) {
      SCOPED_TRACE(each.trace);
      const Json& expected = each.expected;
      if (expected.is_null()) {
        test::message_of([&] { tokenize_chat(tokenizer_, chat, each.messages, each.row); });
        ++theirs_refused_;
        continue;
      }

      ChatTokens tokens;
      try {
        tokens = tokenize_chat(tokenizer_, chat, each.messages, each.row);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
        ++ours_refused_;
        continue;
      }
      ++compared_;
      const auto rendered = training.render(each.messages, false, each.row);
      EXPECT_EQ(short_hash(rendered.text), expected[0].get<std::string>()) << rendered.text;
      EXPECT_EQ(id_hash(tokens.ids), expected[2].get<std::string>());
      EXPECT_EQ(static_cast<int64_t>(tokens.spans.size()), answers(each.conversation));

      if (expected[3].is_null()) continue;  // a beginning changes: it is found, by its words
      if (training.has_generation_marks()) {
        EXPECT_EQ(joined(rendered.generation_spans), expected[1].get<Runs>());
      }
      EXPECT_EQ(runs_of(tokens.assistant), expected[3].get<Runs>()) << rendered.text;
      ++masks_;
    }
  }

  // Texts and ids alone, of a template of a family whose models are not read here.
  void compare_rendering(const std::string& name, const ChatTemplate& chat, const Json& cases) {
    for (const Case& each : all_cases(name, cases)) {
      SCOPED_TRACE(each.trace);
      if (each.expected.is_null()) {
        test::message_of([&] { chat.render(each.messages, false, each.row); });
        ++theirs_refused_;
        continue;
      }
      const std::string text = chat.render(each.messages, false, each.row).text;
      EXPECT_EQ(short_hash(text), each.expected[0].get<std::string>()) << text;
      EXPECT_EQ(id_hash(tokenizer_.encode(text, false)), each.expected[2].get<std::string>());
      ++compared_;
    }
  }

  static int64_t answers(const Json& messages) {
    return std::count_if(messages.begin(), messages.end(),
                         [](const Json& m) { return m["role"] == "assistant"; });
  }

  const Json golden_ = read_json(golden("training.json"));
  const Tokenizer tokenizer_ = Tokenizer::load(golden("gpt2"));
  int64_t compared_ = 0, masks_ = 0, theirs_refused_ = 0, ours_refused_ = 0;
};

// 41 published templates in 13 conversations (turns, system messages, thoughts, calls of tools and
// their results, contents of parts), with tools in hand and without. 28 of them are of language
// models, all families of docs/models.md among them: there no row is refused that the template
// itself takes. The text of the other 13 is read in the folder of TRL's templates that
// RETORT_TRL_TEMPLATES names.
TEST_F(TrainingTemplates, EveryPublishedOneOfTrlRendersAndMasksAsTransformersDoes) {
  for (const Json& known : golden_["known"])
    compare(known["name"], open(known["template"]), known["cases"]);
  EXPECT_EQ(masks_, compared_) << "a training variant marks every answer";
  for (const Json& plain : golden_["plain"])
    compare(plain["name"], open(plain["template"]), plain["cases"]);

  EXPECT_EQ(golden_["known"].size() + golden_["plain"].size() + golden_["others"].size(), 41u);
  EXPECT_EQ(golden_["chats"].size(), 13u);
  EXPECT_EQ(golden_["tools"].size(), 2u);
  EXPECT_EQ(compared_, 636);
  EXPECT_EQ(theirs_refused_, 92);
  EXPECT_EQ(ours_refused_, 0);
  EXPECT_EQ(compared_ + theirs_refused_, 28 * 13 * 2);
  EXPECT_GE(masks_, 620);

  const char* folder = std::getenv("RETORT_TRL_TEMPLATES");
  if (!folder) return;
  for (const Json& other : golden_["others"]) {
    const std::string name = other["name"];
    const std::string source = read_file(std::filesystem::path(folder) / (name + ".jinja"));
    ASSERT_EQ(sha256_hex(source), other["sha256"].get<std::string>()) << name << ": of another TRL";
    const ChatTemplate chat = open(source);
    if (chat.has_generation_marks())
      compare(name, chat, other["cases"]);
    else
      compare_rendering(name, chat, other["cases"]);
  }
  EXPECT_EQ(compared_, 936);
  EXPECT_EQ(compared_ + theirs_refused_, 41 * 13 * 2);
}

TEST_F(TrainingTemplates, AreThoseOfTrl) {
  for (const Json& known : golden_["known"]) {
    const std::string source = known["template"];
    const auto variant = training_template(source);
    ASSERT_TRUE(variant) << known["name"];
    EXPECT_EQ(variant->name, known["name"].get<std::string>());

    const ChatTemplate chat = open(source);
    EXPECT_FALSE(chat.has_generation_marks()) << "what is served stays as it was published";
    EXPECT_EQ(chat.source(), source);
    EXPECT_EQ(chat.for_training().source(), variant->source);
    EXPECT_NE(chat.description().find(variant->name + " as published"), std::string::npos);
    EXPECT_NE(chat.fingerprint(), sha256_hex(source)) << "the tokens of rows are the variant's";
  }
  EXPECT_EQ(golden_["known"].size(), 26u);
}

TEST_F(TrainingTemplates, AreKnownByTheirTextWhateverItsLineEnds) {
  std::string source = golden_["known"][0]["template"];
  std::string windows;
  for (const char c : source)
    windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(training_template(windows)->source, training_template(source)->source);
  source += " ";
  EXPECT_FALSE(training_template(source)) << "any other text is not edited";
  EXPECT_EQ(open(source).for_training().source(), source);
}

TEST_F(TrainingTemplates, AnswersOfTemplatesThatChangeBeginningsAreFoundByTheirWords) {
  // Of each there is a marked twin, whose masks are transformers'.
  for (const Json& own : golden_["own"])
    compare(own["name"], open(own["template"]), own["cases"]);
  EXPECT_GE(compared_, 30);
}

TEST_F(TrainingTemplates, ANamedOneIsThatOfTrl) {
  const TemplateSource named = find_template("qwen3_training");
  compare(named.origin, open(named.text), golden_["qwen3_training"]);
  EXPECT_EQ(compared_, 26);
}

TEST(NamedTemplates, ChatMlMarksAnswersToTheirEndToken) {
  const TemplateSource named = find_template("chatml");
  const auto chat = ChatTemplate::from_source(named.text, "", "");
  const auto rendered = chat.render(kAnswered, true);
  EXPECT_EQ(rendered.text,
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
            "<|im_start|>assistant\n");
  ASSERT_EQ(rendered.generation_spans.size(), 1u);
  const auto [begin, end] = rendered.generation_spans[0];
  EXPECT_EQ(rendered.text.substr(begin, end - begin), "a<|im_end|>");

  const char* parts = R"([{"role": "user", "content": [{"type": "text", "text": "x"},)"
                      R"( {"type": "text", "text": "y"}]}])";
  EXPECT_EQ(chat.render(parts, false).text, "<|im_start|>user\nxy<|im_end|>\n");
  const char* call = R"([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}])";
  EXPECT_NE(test::message_of([&] { chat.render(call, false); }).find("no place for tool calls"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] {
              chat.render(kAnswered, false, R"({"tools": [{}]})");
            }).find("no place for tools"),
            std::string::npos);
}

TEST(NamedTemplates, StandInPlaceOfAFoldersOwn) {
  test::TemporaryFolder folder;
  write_file_atomically(folder.path() / "tokenizer_config.json",
                        R"({"chat_template": "own", "eos_token": "E"})");
  const auto file = folder.path() / "other.jinja";
  write_file_atomically(file, "other {{ eos_token }}{{ messages[0].content }}");
  const auto chat = ChatTemplate::load(folder.path(), find_template(file.string()));
  EXPECT_EQ(chat.render(kAnswered, false).text, "other Eq");
  EXPECT_NE(chat.description().find(file.string()), std::string::npos);

  // What is saved goes before what tokenizer_config.json has.
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  write_chat_template(chat.source(), folder.path());
  EXPECT_EQ(ChatTemplate::load(folder.path()).source(), chat.source());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "additional_chat_templates"));

  const std::string text = test::message_of([] { find_template("qwen4_training"); });
  EXPECT_NE(text.find("qwen4_training"), std::string::npos) << text;
  EXPECT_NE(text.find("known names: chatml, qwen3_training"), std::string::npos) << text;
}

}  // namespace
}  // namespace retort::models
