#include <gtest/gtest.h>

#include "recipes/data/sample.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
using test::kAssistant, test::kBos, test::kEnd, test::kUser, test::word;
using Ids = std::vector<int32_t>;

class PromptTest : public testing::Test {
 protected:
  PromptSample make(const std::string& line, const Source& source = {}) {
    return make_prompt(line, "f.jsonl:7", source, tokenizer_, chat_);
  }
  void refuses(const std::string& line, const std::string& part) {
    const std::string message = test::message_of([&] { make(line); });
    EXPECT_TRUE(message.starts_with("f.jsonl:7: ")) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  test::TemporaryFolder folder_;
  models::Tokenizer tokenizer_ = test::word_tokenizer(folder_.path());
  models::ChatTemplate chat_ = test::chat_template();
};

TEST_F(PromptTest, Strings) {
  const PromptSample sample = make(R"({"prompt":"w1 w2","answer":"42"})");
  EXPECT_EQ(sample.prompt_ids, (Ids{kBos, word(1), word(2)}));
  EXPECT_EQ(sample.prompt_text, "w1 w2");
  EXPECT_EQ(sample.reference, "42");
  EXPECT_EQ(sample.origin, "f.jsonl:7");
  EXPECT_EQ(make(R"({"prompt":"w1"})").reference, "");
  EXPECT_EQ(make(R"({"prompt":"w1","answer":42})").reference, "42");
  EXPECT_EQ(make(R"({"prompt":"w1","completion":"w3"})").reference, "w3");
  EXPECT_EQ(make(R"({"prompt":"w1","completion":"w3 #### 5","answer":"5"})").reference, "5")
      << "the answer goes first";
  EXPECT_EQ(
      make(R"({"q":"w1","a":"w3"})", {.columns = {{"prompt", "q"}, {"answer", "a"}}}).reference,
      "w3");
}

// An environment gets all columns as they are in the file; the conversation stands apart from them.
TEST_F(PromptTest, ARowForEpisodesHasItsConversation) {
  const auto episode = [&](const std::string& line) {
    return make_prompt(line, "f.jsonl:7", {}, tokenizer_, chat_, /*for_episodes=*/true);
  };
  const std::string said = R"([{"role":"user","content":"w1"}])";
  const std::string prompted = R"({"prompt":)" + said + R"(,"a":{"b":[1]},"level":3})";
  EXPECT_EQ(episode(prompted).row, prompted);
  EXPECT_EQ(episode(prompted).messages, said);

  const PromptSample answered = episode(R"({"messages":[{"role":"user","content":"w1"},)"
                                        R"({"role":"assistant","content":"w2"}],"level":3})");
  EXPECT_EQ(answered.messages, said) << "the last answer is the reference";
  EXPECT_EQ(answered.reference, "w2");

  EXPECT_EQ(make(prompted).row, "") << "not asked for";

  // What the template is given has its own name there, as the generator reads it.
  const std::string line = R"({"prompt":)" + said + R"(,"kw":{"b":1})";
  const Source mapped{.columns = {{"chat_template_kwargs", "kw"}}};
  const PromptSample given =
      make_prompt(line + "}", "f.jsonl:7", mapped, tokenizer_, chat_, /*for_episodes=*/true);
  EXPECT_EQ(given.row, line + R"(,"chat_template_kwargs":{"b":1}})");

  const std::string long_row =
      R"({"prompt":)" + said + R"(,"book":")" + std::string(600'000, 'x') + R"("})";
  EXPECT_NO_THROW(make(long_row));
  const std::string refusal = test::message_of([&] { episode(long_row); });
  EXPECT_NE(refusal.find("f.jsonl:7: it has 6000"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("at most 524288 are taken for an episode"), std::string::npos) << refusal;
  const std::string message = test::message_of([&] { episode(R"({"prompt":"w1"})"); });
  EXPECT_NE(message.find("f.jsonl:7: the prompt is a text; an episode begins with"),
            std::string::npos)
      << message;
}

// As verl's rows have them.
TEST_F(PromptTest, AColumnInsideAnotherIsNamedWithDots) {
  const std::string row = R"({"prompt":[{"role":"user","content":"w1"}],"data_source":"s",)"
                          R"("reward_model":{"style":"rule","ground_truth":"17"},)"
                          R"("extra_info":{"answers":["a","b"],"split":null}})";
  const auto reference = [&](const std::string& text, const std::string& column) {
    return make(text, {.columns = {{"answer", column}}}).reference;
  };
  EXPECT_EQ(reference(row, "reward_model.ground_truth"), "17");
  EXPECT_EQ(reference(row, "extra_info.answers.1"), "b");
  EXPECT_EQ(reference(R"({"prompt":"w1","a.b":"5","a":{"b":"6"}})", "a.b"), "5")
      << "a column of the whole name goes first";
  EXPECT_EQ(reference(row, "extra_info.split"), "") << "null is absent";

  const auto refusal = [&](const std::string& column) {
    return test::message_of([&] { reference(row, column); });
  };
  for (const std::string column :
       {"reward_model.truth", "extra_info.answers.2", "data_source.x", "reward_model.", ".a"})
    EXPECT_NE(refusal(column).find("column '" + column + "' (columns: {answer: " + column +
                                   "}) is missing; the row has: prompt, data_source"),
              std::string::npos)
        << refusal(column);
}

TEST_F(PromptTest, TheLastTurnIsAnswered) {
  EXPECT_EQ(
      make(R"({"input_ids":[11,12,13,14,15,16],"labels":[-100,12,13,-100,-100,16]})").prompt_ids,
      (Ids{11, 12, 13, 14, 15}));
  const PromptSample chat =
      make(R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2"},)"
           R"({"role":"user","content":"w3"},{"role":"assistant","content":"w4"}]})");
  EXPECT_EQ(chat.prompt_ids, (Ids{kUser, word(1), kEnd, kAssistant, word(2), kEnd, kUser, word(3),
                                  kEnd, kAssistant}));
  EXPECT_EQ(chat.reference, "w4");
}

TEST_F(PromptTest, ToolsReachTheTemplate) {
  chat_ = test::chat_template("{% for t in tools or [] %}{{ t.name }} {% endfor %}w0");
  const Ids shown{word(7), word(0)};
  EXPECT_EQ(
      make(R"({"messages":[{"role":"user","content":"w1"}],"tools":[{"name":"w7"}]})").prompt_ids,
      shown);
  EXPECT_EQ(
      make(R"({"prompt":[{"role":"user","content":"w1"}],"tools":[{"name":"w7"}]})").prompt_ids,
      shown);
  refuses(R"({"prompt":"w1","tools":[{"name":"w7"}]})", "column 'tools'");
}

TEST_F(PromptTest, PromptsAreThePromptsOfTraining) {
  for (const std::string row :
       {R"({"prompt":"w1 w2","completion":"w3"})",
        R"({"instruction":"w1","input":"w2","output":"w3"})",
        R"({"prompt":[{"role":"user","content":"w1"}],)"
        R"("completion":[{"role":"assistant","content":"w3"}]})",
        R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w3"}]})",
        R"({"conversations":[{"from":"human","value":"w1"},{"from":"gpt","value":"w3"}]})",
        R"({"input_ids":[11,12,13],"labels":[-100,-100,13]})"}) {
    const Sample sample = make_sample(row, "f:1", {}, tokenizer_, chat_, {});
    Ids prompt;
    for (size_t i = 0; i < sample.input_ids.size() && !sample.is_target[i]; ++i)
      prompt.push_back(sample.input_ids[i]);
    EXPECT_EQ(make(row).prompt_ids, prompt) << row;
    EXPECT_EQ(make(row).reference, "w3") << row;
  }
}

TEST_F(PromptTest, Messages) {
  const Ids ids{kUser, word(1), kEnd, kAssistant, word(2), kEnd, kUser, word(3), kEnd, kAssistant};
  const std::string start = R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant",)"
                            R"("content":"w2"},{"role":"user","content":"w3"})";
  EXPECT_EQ(make(start + "]}").prompt_ids, ids);
  EXPECT_EQ(make(start + "]}").reference, "");
  const PromptSample answered = make(start + R"(,{"role":"assistant","content":"w4"}]})");
  EXPECT_EQ(answered.prompt_ids, ids) << "the last answer is the reference, not the prompt";
  EXPECT_EQ(answered.reference, "w4");
  EXPECT_EQ(answered.prompt_text,
            "<|user|>w1<|end|><|assistant|>w2<|end|><|user|>w3<|end|><|assistant|>");
  EXPECT_EQ(make(R"({"prompt":[{"role":"user","content":"w1"}],"answer":"9"})").prompt_ids,
            (Ids{kUser, word(1), kEnd, kAssistant}));
}

TEST_F(PromptTest, LossSwitches) {
  const auto chat = [](const std::string& first, const std::string& last) {
    return R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2")" +
           first + R"(},{"role":"user","content":"w3"},{"role":"assistant","content":"w4")" + last +
           "}]}";
  };
  const Ids plain = make(chat("", "")).prompt_ids;
  EXPECT_EQ(make(chat(R"(,"loss":false)", R"(,"loss":true)")).prompt_ids, plain);
  EXPECT_EQ(make(chat(R"(,"loss":true)", "")).prompt_ids, plain);
  refuses(chat("", R"(,"loss":false)"),
          "messages[3].loss is false, but the last answer is the reference");
  refuses(chat(R"(,"loss":"x")", ""), "messages[1].loss is \"x\"; expected 1 or true");
  refuses(R"({"messages":[{"role":"user","content":"w1","train":true}]})",
          "messages[0].train is true, but the row is a prompt here");
  refuses(R"({"prompt":[{"role":"user","content":"w1","weight":1}]})",
          "prompt[0].weight is 1, but nothing of a prompt is learned");
  refuses(R"({"prompt":[{"role":"user","content":"w1"}],)"
          R"("completion":[{"role":"assistant","content":"w2","weight":0}]})",
          "completion[0].weight is 0, but it is the reference");
}

TEST_F(PromptTest, Errors) {
  refuses(R"({"text":"w1"})", "no prompt to continue");
  refuses(R"({"prompt":7})", "'prompt' is a number");
  refuses(R"({"prompt":"w1","answer":[1]})", "'answer' is an array");
  refuses(R"({"answer":"1"})", "no format fits");
  refuses("{", "malformed JSON");
  refuses(R"({"input_ids":[11],"labels":[11]})", "the prompt has no tokens");
}

}  // namespace
}  // namespace retort::data
