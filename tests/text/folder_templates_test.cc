// Which of several chat templates of a folder renders a conversation: as transformers'
// get_chat_template chooses.
#include "models/checkpoint/checkpoint.h"
#include "models/text/chat_template.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/text/goldens.h"

namespace retort::models {
namespace {

constexpr const char* kQuestion = R"([{"role": "user", "content": "hi"}])";
constexpr const char* kTools = R"({"tools": [{"name": "add"}]})";
// Command-R and Hermes-2-Pro have two such.
constexpr const char* kTwo =
    R"({"chat_template": [{"name": "default", "template": "{{ messages[0].content }}"},)"
    R"( {"name": "tool_use", "template": "# Tools {{ tools }} {{ messages[0].content }}"}]})";

class FolderTemplates : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    write_file_atomically(folder_.path() / name, text);
  }
  ChatTemplate load() const { return ChatTemplate::load(folder_.path()); }

  test::TemporaryFolder folder_;
};

TEST_F(FolderTemplates, ToolsTakeTheTemplateForThem) {
  write("tokenizer_config.json", kTwo);
  const auto chat = load();
  EXPECT_EQ(chat.render(kQuestion, false).text, "hi");
  EXPECT_EQ(chat.render(kQuestion, false, kTools).text, "# Tools [{'name': 'add'}] hi");

  // An empty list is given too; null is not.
  EXPECT_EQ(chat.render(kQuestion, false, R"({"tools": []})").text, "# Tools [] hi");
  EXPECT_EQ(chat.render(kQuestion, false, R"({"tools": null})").text, "hi");

  // The tools of all rows, which a row of its own hides.
  const auto always = chat.with({.variables_json = kTools});
  EXPECT_EQ(always.render(kQuestion, false).text, "# Tools [{'name': 'add'}] hi");
  EXPECT_EQ(always.render(kQuestion, false, R"({"tools": null})").text, "hi");
}

TEST_F(FolderTemplates, FilesGoBeforeTheConfiguration) {
  write("tokenizer_config.json", kTwo);
  write("chat_template.jinja", "J");
  EXPECT_EQ(load().render(kQuestion, false, kTools).text, "J") << "a file hides the whole list";
  write("additional_chat_templates/tool_use.jinja", "T{% generation %}{% endgeneration %}");
  write("additional_chat_templates/rag.jinja", "R");
  write("additional_chat_templates/notes.txt", "N");
  const auto chat = load();
  EXPECT_EQ(chat.render(kQuestion, false).text, "J");
  EXPECT_EQ(chat.render(kQuestion, false, kTools).text, "T");
  EXPECT_FALSE(chat.has_generation_marks());
  EXPECT_TRUE(chat.has_generation_marks(kTools));

  // Both templates are what a rendering depends on, and a copy of the folder has both.
  const std::string before = chat.fingerprint();
  test::TemporaryFolder copy;
  copy_tokenizer_files(folder_.path(), copy.path());
  EXPECT_EQ(ChatTemplate::load(copy.path()).fingerprint(), before);
  write("additional_chat_templates/tool_use.jinja", "U");
  EXPECT_NE(load().fingerprint(), before);
}

// Marks, and the training variant of a published template, are those of the template that renders.
TEST_F(FolderTemplates, AnswersAreFoundByTheTemplateThatRenders) {
  const Json known = read_json(golden("training.json"))["known"][0];
  const std::string marked =
      "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
  write("chat_template.jinja", marked);
  write("additional_chat_templates/tool_use.jinja", known["template"].get<std::string>());
  const auto chat = load();
  EXPECT_EQ(chat.tool_use_source(), known["template"].get<std::string>());
  EXPECT_TRUE(chat.has_generation_marks());
  EXPECT_FALSE(chat.has_generation_marks(kTools));
  EXPECT_TRUE(chat.for_training().has_generation_marks(kTools));
  EXPECT_EQ(chat.for_training().source(), marked);
  EXPECT_NE(chat.for_training().tool_use_source(), chat.tool_use_source());
  const std::string name = known["name"];
  EXPECT_NE(chat.description().find("for conversations with tools: " + name + " as published"),
            std::string::npos)
      << chat.description();

  // A default without marks is asked for parts of a conversation, whatever tool_use has.
  write("chat_template.jinja", "{% for m in messages %}{{ m.content }};{% endfor %}");
  write("additional_chat_templates/tool_use.jinja", marked);
  const std::string answered =
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}])";
  const auto tokens = tokenize_chat(Tokenizer::load(golden("gpt2")), load(), answered);
  EXPECT_EQ(tokens.spans.size(), 1u);
}

TEST_F(FolderTemplates, WithoutADefaultTheNamesAreSaid) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "T"}]})");
  const auto chat = load();
  EXPECT_TRUE(chat.exists());
  EXPECT_EQ(chat.render(kQuestion, false, kTools).text, "T");
  const auto message = test::message_of([&] { chat.render(kQuestion, false); });
  EXPECT_NE(message.find("'default'"), std::string::npos) << message;
  EXPECT_NE(message.find("tool_use"), std::string::npos) << message;

  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "T"}, {"name": "x", "template": ""}]})");
  const auto neither = test::message_of([&] { load(); });
  EXPECT_NE(neither.find("rag, x"), std::string::npos) << neither;
  EXPECT_NE(neither.find("'default'"), std::string::npos) << neither;
}

}  // namespace
}  // namespace retort::models
