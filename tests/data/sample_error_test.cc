// What is wrong with a row is said, with file and line; nothing is masked silently.
#include <gtest/gtest.h>

#include "recipes/data/sample.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {

class SampleErrorTest : public testing::Test {
 protected:
  // Expects a kInvalidArgument at "dir/f.jsonl:7: " whose message holds `part`.
  void refuses(const std::string& line, const std::string& part, const Source& source = {},
               const SampleOptions& options = {}) {
    const std::string message = test::message_of(
        [&] { make_sample(line, "dir/f.jsonl:7", source, tokenizer_, chat_, options); });
    EXPECT_TRUE(message.starts_with("dir/f.jsonl:7: ")) << line << "\n  " << message;
    EXPECT_NE(message.find(part), std::string::npos) << line << "\n  " << message;
  }

  test::TemporaryFolder folder_;
  models::Tokenizer tokenizer_ = test::word_tokenizer(folder_.path());
  models::ChatTemplate chat_ = test::chat_template();
};

TEST_F(SampleErrorTest, Json) {
  refuses(R"({"text":"w1")", "the line ends in the middle of a value");
  refuses(R"({"text":"w)", "the line ends in the middle of a value");
  refuses(R"({"text":"w1"} x)", "malformed JSON at column 15");
  refuses(R"({"text":nan})", "malformed JSON at column");
  refuses("{\"text\":\"w1 \xff\"}", "UTF-8");
  refuses("{\"text\":\"w1 \xc3\"}", "UTF-8");
  refuses(R"({"text":"\ud800"})", "surrogate");
  refuses(R"([{"text":"w1"}])", "JSON array");
  refuses(R"("w1")", "the line is a string; expected an object");
}

TEST_F(SampleErrorTest, Formats) {
  refuses(R"({"question":"w1","id":3})", "The row has: question, id");
  refuses(R"({})", "no columns");
  refuses(R"({"text":"w1","prompt":"w1","completion":"w2"})",
          "several formats fit: prompt_completion (prompt + completion), text (text)");
  refuses(R"({"prompt":"w1","chosen":"w2","rejected":"w3"})", "preference row");
  refuses(R"({"prompt":"w1","answer":"42"})", "columns: {completion: answer}");
  refuses(R"({"prompt":"w1"})", "no format fits");
  refuses(R"({"text":"w1"})", "'messages' is missing or null", {.format = Format::kMessages});
}

TEST_F(SampleErrorTest, Columns) {
  refuses(R"({"q":"w1"})", "column 'a' (columns: {completion: a}) is missing; the row has: q",
          {.columns = {{"prompt", "q"}, {"completion", "a"}}});
  refuses(R"({"text":5})", "'text' is a number; expected a string");
  refuses(R"({"prompt":"w1","completion":["w2"]})", "two strings or two arrays of messages");
  refuses(R"({"prompt":"w1","completion":{"role":"assistant"}})",
          "two strings or two arrays of messages");
  refuses(R"({"instruction":"w1","input":3,"output":"w2"})", "'input' is a number");
  refuses(R"({"instruction":"w1","output":"w2","history":[["a","b"]]})", "column 'history'");
  refuses(R"({"prompt":"w1","completion":"w2","tools":[{"name":"f"}]})", "column 'tools'");
  refuses(R"({"prompt":"w1","completion":"w2","chat_template_kwargs":{"a":1}})",
          "column 'chat_template_kwargs'");
  const std::string said = R"({"messages":[{"role":"assistant","content":"w1"}],)";
  refuses(said + R"("tools":"f"})", "'tools' is a string; expected an array");
  refuses(said + R"("tools":["f"]})", "'tools' holds a string");
  refuses(said + R"("tools":{"name":"f"}})", "'tools' is an object");
  refuses(said + R"("chat_template_kwargs":[]})", "'chat_template_kwargs' is an array");
  refuses(said + R"("chat_template_kwargs":{"messages":[]}})", "cannot be named 'messages'");
}

TEST_F(SampleErrorTest, Messages) {
  refuses(R"({"messages":[]})", "empty array");
  refuses(R"({"messages":"w1"})", "is a string; expected a non-empty array");
  refuses(R"({"messages":["w1"]})", "messages[0] is a string");
  refuses(R"({"messages":[{"content":"w1"}]})", "messages[0].role");
  refuses(R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant"}]})",
          "messages[1].content is missing");
  refuses(R"({"messages":[{"role":"user","content":3}]})", "messages[0].content is a number");
  refuses(R"({"conversations":[{"from":"robot","value":"w1"}]})",
          "conversations[0].from is 'robot'");
  refuses(R"({"conversations":[{"from":"gpt"}]})", "conversations[0].value");
  refuses(R"({"conversations":[]})", "non-empty array");
  chat_ = models::ChatTemplate::load(folder_.path());
  refuses(R"({"messages":[{"role":"assistant","content":"w1"}]})",
          "need a chat template, and " + folder_.path().string());
}

TEST_F(SampleErrorTest, LossSwitches) {
  const auto chat = [](const std::string& user, const std::string& assistant) {
    return R"({"messages":[{"role":"user","content":"w1")" + user +
           R"(},{"role":"assistant","content":"w2")" + assistant + "}]}";
  };
  const std::string expected = "; expected 1 or true (learned), 0 or false (only read)";
  refuses(chat("", R"(,"weight":0.5)"), "messages[1].weight is 0.5" + expected);
  refuses(chat("", R"(,"weight":2)"), "messages[1].weight is 2" + expected);
  refuses(chat("", R"(,"loss":"false")"), "messages[1].loss is \"false\"" + expected);
  refuses(chat("", R"(,"loss_mask":[0,1])"), "messages[1].loss_mask is an array" + expected);
  refuses(chat(R"(,"train":"no")", ""), "messages[0].train is \"no\"" + expected);
  refuses(chat("", R"(,"weight":0,"train":true)"),
          "messages[1].weight is 0 and messages[1].train is true; they contradict each other");
  refuses(chat(R"(,"train":true)", ""),
          "messages[0].train is true, but with assistant_only_loss only what the assistant says");
  refuses(chat("", R"(,"trainable":false)"), "no targets: no answer is left to learn");
  refuses(R"({"conversations":[{"from":"human","value":"w1"},)"
          R"({"from":"gpt","value":"w2","weight":3}]})",
          "conversations[1].weight is 3" + expected);

  // Where rows are learned as wholes, or not at all.
  const SampleOptions all{.completion_only_loss = false, .assistant_only_loss = false};
  refuses(chat("", R"(,"loss":false)"),
          "messages[1].loss is false, but assistant_only_loss: false trains on all tokens", {},
          all);
  const auto pair = [](const std::string& prompt, const std::string& completion) {
    return R"({"prompt":[{"role":"user","content":"w1")" + prompt +
           R"(}],"completion":[{"role":"assistant","content":"w2")" + completion + "}]}";
  };
  refuses(pair("", R"(,"weight":0)"),
          "completion[0].weight is 0, but all of a completion is learned; remove the key, or write "
          "the conversation as a `messages` row");
  refuses(pair(R"(,"weight":1)", ""), "prompt[0].weight is 1, but nothing of a prompt is learned");
  refuses(pair(R"(,"weight":0)", ""),
          "prompt[0].weight is 0, but completion_only_loss: false trains on the whole prompt", {},
          all);
  make_sample(pair(R"(,"weight":0)", R"(,"weight":1)"), "f:1", {}, tokenizer_, chat_, {});
}

// Which tokens an answer has is known by the order of the blocks, so there must be one an answer.
TEST_F(SampleErrorTest, LossSwitchesNeedABlockForEachAnswer) {
  const std::string row =
      R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2","loss":0},)"
      R"({"role":"user","content":"w3"},{"role":"assistant","content":"w4"}]})";
  const auto with = [](const std::string& answer) {
    return test::chat_template("{% for m in messages %}{% if m.role == 'assistant' %}" + answer +
                               "{% else %}{{ m.content }} {% endif %}{% endfor %}");
  };
  const std::string block = "{% generation %}{{ m.content }} {% endgeneration %}";
  chat_ = with(block + block);
  refuses(row, "the chat template has 2 {% generation %} blocks in the first 1 answers");
  chat_ = with("{% if loop.last %}" + block + block + "{% else %}{{ m.content }} {% endif %}");
  refuses(row, "the chat template has 2 {% generation %} blocks in the first 1 answers");
  chat_ = with("{% if loop.last and loop.index > 2 %}" + block + block + "{% endif %}");
  refuses(row, "the chat template has 0 {% generation %} blocks in the first 1 answers");
}

TEST_F(SampleErrorTest, TemplatesThatCannotBeMasked) {
  chat_ = test::chat_template(
      "w{{ messages|length }} {% for m in messages %}{{ m.content }} {% endfor %}");
  refuses(R"({"prompt":[{"role":"user","content":"w1"}],)"
          R"("completion":[{"role":"assistant","content":"w2"}]})",
          "the prompt alone begins with another token than prompt and completion");
  // The answer stands behind the next question, too.
  chat_ = test::chat_template(
      "{% for m in messages %}{{ m.content }} {% if loop.index0 > 1 %}{{ messages[1].content }} "
      "{% endif %}{% endfor %}{% if add_generation_prompt %}w9 {% endif %}");
  refuses(R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2"},)"
          R"({"role":"user","content":"w3"}]})",
          "cannot be located");
  chat_ = test::chat_template(
      "{% for m in messages %}{{ m.content }} {% if false %}{% generation %}{% endgeneration %}{% "
      "endif %}{% endfor %}");
  refuses(R"({"messages":[{"role":"assistant","content":"w2"}]})",
          "no targets: the chat template puts nothing");
  chat_ = test::chat_template("{{ raise_exception('roles must alternate') }}");
  refuses(R"({"messages":[{"role":"assistant","content":"w2"}]})", "roles must alternate");
}

TEST_F(SampleErrorTest, InputIds) {
  refuses(R"({"input_ids":[]})", "non-empty array");
  refuses(R"({"input_ids":[11,-1]})", "input_ids[1] is -1");
  refuses(R"({"input_ids":[11,100]})", "input_ids[1] is 100; expected a token id from 0 to 99");
  refuses(R"({"input_ids":[11,1.5]})", "input_ids[1] is 1.5");
  refuses(R"({"input_ids":[11,12],"labels":[-100]})", "as long as input_ids (2); it has 1");
  refuses(R"({"input_ids":[11,12],"labels":[12,-100]})", "labels are not shifted");
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  refuses(R"({"input_ids":[11,)" + deep + "]}", "nested deeper than 100 levels");
  refuses(R"({"input_ids":[11,12],"attention_mask":[0,1]})", "padding");
  refuses(R"({"input_ids":[11,12],"completion_mask":[0,1]})",
          "say which ids are targets with `labels`");
}

TEST_F(SampleErrorTest, NoTargets) {
  const SampleOptions short_rows{.max_length = 4};
  refuses(
      R"({"prompt":"w1 w2 w3 w4","completion":"w5 w6"})",
      "no targets: all 3 targets lie beyond max_length 4 (the row has 8 tokens, the start is kept)",
      {}, short_rows);
  refuses(
      R"({"messages":[{"role":"user","content":"w1 w2 w3"},{"role":"assistant","content":"w4"}]})",
      "all 2 targets lie beyond max_length 4", {}, short_rows);
  refuses(R"({"messages":[{"role":"user","content":"w1"}]})", "no message has the role assistant");
  refuses(R"({"input_ids":[11,12],"labels":[-100,-100]})",
          "all labels from the second on are -100");
  refuses(R"({"input_ids":[11,12],"labels":[11,-100]})", "all labels from the second on are -100");
  refuses(R"({"input_ids":[11]})", "single token");
  refuses(R"({"text":""})", "'text' is empty");
}

TEST_F(SampleErrorTest, TokenizerWithoutEos) {
  tokenizer_ = test::word_tokenizer(folder_.path(), {.has_eos = false});
  refuses(R"({"text":"w1"})", "names no eos_token");
  refuses(R"({"prompt":"w1","completion":"w2"})", "names no eos_token");
}

}  // namespace
}  // namespace retort::data
