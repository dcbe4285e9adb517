// The training variants of published templates, and answers of templates without marks, against
// transformers with TRL's training templates (make_training_goldens.py).
#include "models/text/training_template.h"

#include <algorithm>

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

  // Every conversation with every set of tools; what transformers refuses is counted apart.
  void compare(const std::string& name, const ChatTemplate& chat, const Json& cases) {
    const ChatTemplate training = chat.for_training();
    for (size_t i = 0; i < cases.size(); ++i) {
      for (size_t j = 0; j < cases[i].size(); ++j) {
        const Json& expected = cases[i][j];
        const Json& tools = golden_["tools"][j];
        const std::string row = tools.is_null() ? "{}" : Json{{"tools", tools}}.dump();
        const std::string messages = golden_["chats"][i].dump();
        SCOPED_TRACE(name + (tools.is_null() ? ": " : " with tools: ") + messages);
        if (expected.is_null()) {
          test::message_of([&] { tokenize_chat(tokenizer_, chat, messages, row); });
          ++theirs_refused_;
          continue;
        }

        ChatTokens tokens;
        try {
          tokens = tokenize_chat(tokenizer_, chat, messages, row);
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
          continue;
        }
        ++compared_;
        if (expected.is_string()) continue;  // a beginning changes: it is found, by its words
        const auto rendered = training.render(messages, false, row);
        EXPECT_EQ(short_hash(rendered.text), expected[0].get<std::string>()) << rendered.text;
        if (training.has_generation_marks()) {
          EXPECT_EQ(joined(rendered.generation_spans), expected[1].get<Runs>());
        }
        EXPECT_EQ(id_hash(tokens.ids), expected[2].get<std::string>());
        EXPECT_EQ(runs_of(tokens.assistant), expected[3].get<Runs>()) << rendered.text;
        EXPECT_EQ(static_cast<int64_t>(tokens.spans.size()), answers(golden_["chats"][i]));
      }
    }
  }

  static int64_t answers(const Json& messages) {
    return std::count_if(messages.begin(), messages.end(),
                         [](const Json& m) { return m["role"] == "assistant"; });
  }

  const Json golden_ = read_json(golden("training.json"));
  const Tokenizer tokenizer_ = Tokenizer::load(golden("gpt2"));
  int64_t compared_ = 0, theirs_refused_ = 0;
};

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
    compare(variant->name, chat, known["cases"]);
  }
  EXPECT_EQ(golden_["known"].size(), 26u);
  EXPECT_EQ(compared_ + theirs_refused_, 26 * 26);
  EXPECT_LE(theirs_refused_, 100);
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

TEST_F(TrainingTemplates, WithoutOneAnswersAreWhatRenderingUpToThemAdds) {
  for (const Json& plain : golden_["plain"])
    compare(plain["name"], open(plain["template"]), plain["cases"]);
  EXPECT_GE(compared_, 40);
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
