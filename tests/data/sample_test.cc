// Every row format with its exact ids and target mask.
#include "recipes/data/sample.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/data/word_tokenizer.h"

namespace retort::data {
namespace {
using test::kAssistant, test::kBos, test::kEnd, test::kEos, test::kSystem, test::kUnknown,
    test::kUser, test::word;
using Ids = std::vector<int32_t>;
using Mask = std::vector<uint8_t>;

class SampleTest : public testing::Test {
 protected:
  Sample make(const std::string& line, const Source& source = {},
              const SampleOptions& options = {}) {
    return make_sample(line, "f.jsonl:7", source, tokenizer_, chat_, options);
  }
  void expect(const std::string& line, const Ids& ids, const Mask& mask,
              const SampleOptions& options = {}, const Source& source = {}) {
    const Sample sample = make(line, source, options);
    EXPECT_EQ(sample.input_ids, ids) << line;
    EXPECT_EQ(sample.is_target, mask) << line;
    EXPECT_FALSE(sample.truncated) << line;
    EXPECT_EQ(sample.origin, "f.jsonl:7");
  }

  test::TemporaryFolder folder_;
  models::Tokenizer tokenizer_ = test::word_tokenizer(folder_.path());
  models::ChatTemplate chat_ = test::chat_template();
  const SampleOptions all_tokens_{.completion_only_loss = false, .assistant_only_loss = false};
};

TEST_F(SampleTest, PromptAndCompletionStrings) {
  const std::string row = R"({"prompt":"w1 w2","completion":"w3 w4"})";
  const Ids ids{kBos, word(1), word(2), word(3), word(4), kEos};
  expect(row, ids, {0, 0, 0, 1, 1, 1});
  expect(row, ids, {0, 1, 1, 1, 1, 1}, all_tokens_);
}

TEST_F(SampleTest, BosAndEosAreNotDoubled) {
  expect(R"({"prompt":"<s> w1","completion":"w2 </s>"})", {kBos, word(1), word(2), kEos},
         {0, 0, 1, 1});
  expect(R"({"text":"<s> w1 </s>"})", {kBos, word(1), kEos}, {0, 1, 1});
}

TEST_F(SampleTest, EmptyPromptAndEmptyCompletion) {
  expect(R"({"prompt":"","completion":"w1"})", {kBos, word(1), kEos}, {0, 1, 1});
  expect(R"({"prompt":"w1","completion":""})", {kBos, word(1), kEos}, {0, 0, 1});
  // An EOS that ends the prompt is the prompt's own.
  expect(R"({"prompt":"w1 </s>","completion":""})", {kBos, word(1), kEos, kEos}, {0, 0, 0, 1});
}

TEST_F(SampleTest, TokenizersThatAddOtherSpecials) {
  const std::string row = R"({"prompt":"w1","completion":"w2"})";
  tokenizer_ = test::word_tokenizer(folder_.path(), {.adds_bos = false});
  expect(row, {word(1), word(2), kEos}, {0, 1, 1});
  // nothing predicts w2
  expect(R"({"prompt":"","completion":"w2 w3"})", {word(2), word(3), kEos}, {0, 1, 1});
  tokenizer_ = test::word_tokenizer(folder_.path(), {.adds_bos = true, .adds_eos = true});
  // no EOS between prompt and completion
  expect(row, {kBos, word(1), word(2), kEos}, {0, 0, 1, 1});
  expect(R"({"text":"w1 w2"})", {kBos, word(1), word(2), kEos}, {0, 1, 1, 1});
}

TEST_F(SampleTest, Text) {
  expect(R"({"text":"w5 w6 nonsense"})", {kBos, word(5), word(6), kUnknown, kEos}, {0, 1, 1, 1, 1});
}

TEST_F(SampleTest, Messages) {
  const std::string row =
      R"({"messages":[{"role":"system","content":"w1"},{"role":"user","content":"w2"},)"
      R"({"role":"assistant","content":"w3 w4"},{"role":"user","content":"w5"},)"
      R"({"role":"assistant","content":"w6"}]})";
  const Ids ids{kSystem, word(1), kEnd,  kUser,   word(2), kEnd,       kAssistant, word(3),
                word(4), kEnd,    kUser, word(5), kEnd,    kAssistant, word(6),    kEnd};
  expect(row, ids, {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1});  // every assistant turn
  expect(row, ids, {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, all_tokens_);
}

TEST_F(SampleTest, ShareGpt) {
  const Ids ids{kSystem, word(1), kEnd, kUser, word(2), kEnd, kAssistant, word(3), kEnd};
  const Mask mask{0, 0, 0, 0, 0, 0, 0, 1, 1};
  expect(R"({"conversations":[{"from":"system","value":"w1"},{"from":"human",)"
         R"("value":"w2"},{"from":"gpt","value":"w3"}]})",
         ids, mask);
  expect(R"({"system":"w1","conversations":[{"from":"user","value":"w2"},)"
         R"({"from":"assistant","value":"w3"}]})",
         ids, mask);
}

TEST_F(SampleTest, PromptAndCompletionMessages) {
  const std::string row = R"({"prompt":[{"role":"user","content":"w1"}],)"
                          R"("completion":[{"role":"assistant","content":"w2"},)"
                          R"({"role":"user","content":"w3"},{"role":"assistant","content":"w4"}]})";
  const Ids ids{kUser, word(1), kEnd, kAssistant, word(2), kEnd,
                kUser, word(3), kEnd, kAssistant, word(4), kEnd};
  // All that the full rendering adds is the completion, and nothing is appended to what the
  // template ends.
  expect(row, ids, {0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
  expect(row, ids, {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, all_tokens_);
}

TEST_F(SampleTest, Alpaca) {
  const auto prompt = [&](const std::string& text) { return tokenizer_.encode(text, true); };
  const std::string tail =
      "Write a response that appropriately completes the request.\n\n### Instruction:\nw1\n\n";
  Ids with = prompt(
      "Below is an instruction that describes a task, paired with an input that provides further "
      "context. " +
      tail + "### Input:\nw2\n\n### Response:\n");
  Ids alone = prompt("Below is an instruction that describes a task. " + tail + "### Response:\n");
  EXPECT_EQ(alone.size(), 1u + 8 + 8 + 5);
  for (auto& [ids, row] : {std::pair{with, R"({"instruction":"w1","input":"w2","output":"w3"})"},
                           std::pair{alone, R"({"instruction":"w1","input":"","output":"w3"})"},
                           std::pair{alone, R"({"instruction":"w1","output":"w3"})"}}) {
    Mask mask(ids.size(), 0);
    Ids all = ids;
    for (const int32_t id : {word(3), int32_t{kEos}})
      all.push_back(id), mask.push_back(1);
    expect(row, all, mask);
  }
}

TEST_F(SampleTest, InputIds) {
  expect(R"({"input_ids":[11,12,13]})", {11, 12, 13}, {0, 1, 1});
  expect(R"({"input_ids":[11,12,13,14],"labels":[-100,-100,13,-100]})", {11, 12, 13, 14},
         {0, 0, 1, 0});
  expect(R"({"input_ids":[11,12],"labels":[11,12],"attention_mask":[1,1]})", {11, 12}, {0, 1});
}

TEST_F(SampleTest, ColumnsAreRenamed) {
  const Source source{.columns = {{"prompt", "question"}, {"completion", "answer"}}};
  const Sample sample =
      make(R"({"id":17,"question":"w1","answer":"w2","prompt":"other","score":0.5,)"
           R"("list":[1],"flag":true})",
           source);
  EXPECT_EQ(sample.input_ids, (Ids{kBos, word(1), word(2), kEos}));
  const std::vector<std::pair<std::string, std::string>> fields{
      {"id", "17"}, {"prompt", "other"}, {"score", "0.5"}};
  EXPECT_EQ(sample.fields, fields);
}

TEST_F(SampleTest, OtherColumnsAreKept) {
  const Sample sample =
      make(R"({"prompt":"w1","completion":"w2","answer":"42","domain":"math","none":null})");
  const std::vector<std::pair<std::string, std::string>> fields{{"answer", "42"},
                                                                {"domain", "math"}};
  EXPECT_EQ(sample.fields, fields);
}

TEST_F(SampleTest, OverMaxLengthTheStartIsKept) {
  const Sample sample = make(R"({"prompt":"w1 w2","completion":"w3 w4"})", {}, {.max_length = 4});
  EXPECT_EQ(sample.input_ids, (Ids{kBos, word(1), word(2), word(3)}));
  EXPECT_EQ(sample.is_target, (Mask{0, 0, 0, 1}));
  EXPECT_TRUE(sample.truncated);
  EXPECT_EQ(sample.num_targets(), 1);
  EXPECT_FALSE(make(R"({"prompt":"w1 w2","completion":"w3 w4"})", {}, {.max_length = 6}).truncated);

  // From the other side: the first token that is left is no target, as nothing predicts it.
  const Sample end = make(R"({"prompt":"w1 w2","completion":"w3 w4"})", {},
                          {.max_length = 4, .truncation_mode = TruncationMode::kKeepEnd});
  EXPECT_EQ(end.input_ids, (Ids{word(2), word(3), word(4), test::kEos}));
  EXPECT_EQ(end.is_target, (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_TRUE(end.truncated);
  const Sample later = make(R"({"prompt":"w1 w2","completion":"w3 w4"})", {},
                            {.max_length = 2, .truncation_mode = TruncationMode::kKeepEnd});
  EXPECT_EQ(later.is_target, (std::vector<uint8_t>{0, 1}));
}

TEST_F(SampleTest, DetectsTheFormatByTheKeys) {
  const auto detect = [](const std::string& line, const Source& source = {}) {
    return detect_format(line, "f:1", source);
  };
  EXPECT_EQ(detect(R"({"messages":[]})"), Format::kMessages);
  EXPECT_EQ(detect(R"({"prompt":"","messages":[]})"), Format::kMessages);
  EXPECT_EQ(detect(R"({"prompt":"","completion":"","answer":"3"})"), Format::kPromptCompletion);
  EXPECT_EQ(detect(R"({"text":""})"), Format::kText);
  EXPECT_EQ(detect(R"({"instruction":"","input":"","output":""})"), Format::kAlpaca);
  EXPECT_EQ(detect(R"({"conversations":[]})"), Format::kShareGpt);
  EXPECT_EQ(detect(R"({"input_ids":[],"labels":[]})"), Format::kInputIds);
  EXPECT_EQ(detect(R"({"messages":[],"text":null})"), Format::kMessages) << "null is absent";
  EXPECT_EQ(detect(R"({"q":"","a":""})", {.columns = {{"prompt", "q"}, {"completion", "a"}}}),
            Format::kPromptCompletion);
  EXPECT_EQ(detect(R"({"q":""})", {.format = Format::kText, .columns = {{"text", "q"}}}),
            Format::kText);
}

// The words that the template shows of a row's tools and of its own variables.
constexpr const char* kToolTemplate =
    "{% for tool in tools or [] %}{{ tool.name }} {% endfor %}{{ mood or '' }} "
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

// What trl.trainer.utils.remove_none_values (TRL 1.16) leaves: entries of objects go, at every
// depth, items of lists stay.
TEST_F(SampleTest, NullsAreTakenOutOfStructs) {
  chat_ = test::chat_template(
      "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}"
      "{% for key, value in m.call.items() %}{{ key }} {% endfor %}"
      "{{ m.call.list | length }}<|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>"
      "{% endif %}{% endfor %}");
  const std::string row =
      R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w9","call":)"
      R"({"w2":null,"w3":1,"list":[null,1],"w4":null}}]})";
  const auto ids_with = [&](bool removes) {
    return make(row, {.path = "k", .remove_none_values = removes}).input_ids;
  };
  EXPECT_NE(ids_with(false), ids_with(true));
  const Ids removed = ids_with(true);
  EXPECT_EQ(std::count(removed.begin(), removed.end(), word(2)), 0);
  EXPECT_EQ(std::count(removed.begin(), removed.end(), word(3)), 1);
  EXPECT_EQ(std::count(removed.begin(), removed.end(), word(4)), 0);
  const Ids kept = ids_with(false);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), word(2)), 1);
}

TEST_F(SampleTest, ToolsAndVariablesOfARowReachTheTemplate) {
  chat_ = test::chat_template(kToolTemplate);
  const std::string chat =
      R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w2"}])";
  const auto ids = [&](const std::string& line) { return make(line).input_ids; };
  const Ids plain = ids(chat + "}");
  const auto with = [&](const Ids& words) {
    Ids all = words;
    all.insert(all.end(), plain.begin(), plain.end());
    return all;
  };
  EXPECT_EQ(ids(chat + R"(,"tools":[{"name":"w7"},{"name":"w8"}]})"), with({word(7), word(8)}));
  EXPECT_EQ(ids(chat + R"(,"tools":"[{\"name\":\"w7\"}]"})"), with({word(7)})) << "as text";
  EXPECT_EQ(ids(chat + R"(,"tools":[]})"), plain);
  EXPECT_EQ(ids(chat + R"(,"tools":null})"), plain);
  EXPECT_EQ(ids(chat + R"(,"chat_template_kwargs":{"mood":"w9"},"tools":[{"name":"w7"}]})"),
            with({word(7), word(9)}));
  EXPECT_EQ(
      make(chat + R"(,"f":[{"name":"w7"}]})", {.path = "k", .columns = {{"tools", "f"}}}).input_ids,
      with({word(7)}));

  // What all rows are given, and the prompt of a row of prompt and completion.
  chat_ = chat_.with({.variables_json = R"({"mood":"w5"})"});
  EXPECT_EQ(ids(chat + R"(,"tools":[{"name":"w7"}]})"), with({word(7), word(5)}));
  const Sample pair = make(R"({"prompt":[{"role":"user","content":"w1"}],"tools":[{"name":"w7"}],)"
                           R"("completion":[{"role":"assistant","content":"w2"}]})");
  EXPECT_EQ(pair.input_ids, with({word(7), word(5)}));
  EXPECT_EQ(pair.num_targets(), 2) << "w2 and the end of the turn";
}

// A conversation of two answers, the parts `first` and `second` put into them.
std::string two_answers(const std::string& first, const std::string& second,
                        const std::string& user = "") {
  return R"({"messages":[{"role":"user","content":"w1")" + user +
         R"(},{"role":"assistant","content":"w2")" + first +
         R"(},{"role":"user","content":"w3"},{"role":"assistant","content":"w4")" + second + "}]}";
}

TEST_F(SampleTest, AnAnswerThatIsSwitchedOffIsOnlyRead) {
  const Ids ids{kUser, word(1), kEnd, kAssistant, word(2), kEnd,
                kUser, word(3), kEnd, kAssistant, word(4), kEnd};
  const Mask both{0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1};
  const Mask second{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1};
  const Mask first{0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0};
  const std::string unmarked =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>"
      "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
  for (const std::string& source : {std::string(test::kMarkedTemplate), unmarked}) {
    chat_ = test::chat_template(source);
    for (const std::string key : {"weight", "loss", "train", "loss_mask", "trainable"}) {
      const std::string off = ",\"" + key + "\":";
      const std::string none = off + "null";
      for (const std::string value : {"0", "false", "0.0"}) {
        expect(two_answers(off + value, off + "1"), ids, second);
        expect(two_answers("", off + value), ids, first);
      }
      expect(two_answers(off + "true", off + "1.0"), ids, both);
      expect(two_answers(none, none), ids, both);
      expect(two_answers(off + "0", "", off + "false"), ids, second);
    }
  }
  expect(two_answers(R"(,"weight":0,"train":false)", ""), ids, second);
  expect(two_answers(R"(,"train":true)", R"(,"train":1)", R"(,"train":true)"), ids,
         {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, all_tokens_);
  expect(
      R"({"conversations":[{"from":"human","value":"w1"},{"from":"gpt","value":"w2","weight":0},)"
      R"({"from":"human","value":"w3"},{"from":"gpt","value":"w4","weight":1}]})",
      ids, second);
}

TEST_F(SampleTest, ATokenOfTwoAnswersIsATargetIfOneIsLearned) {
  // Without space between them the words of both answers are one token.
  chat_ = test::chat_template(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}<|user|>{{ m.content }}<|end|>{% endif %}{% endfor %}");
  expect(
      R"({"messages":[{"role":"user","content":"w1"},{"role":"assistant","content":"w","loss":0},)"
      R"({"role":"assistant","content":"2"}]})",
      {kUser, word(1), kEnd, word(2)}, {0, 0, 0, 1});
}

TEST(LastTurn, BeginsBehindTheLastTokenThatIsNoTarget) {
  EXPECT_EQ(last_turn_begin({0, 1, 1, 0, 0, 1, 1, 0}), 5);
  EXPECT_EQ(last_turn_begin({0, 0, 1}), 2);
  EXPECT_EQ(last_turn_begin({0, 1, 1}), 1);
  EXPECT_EQ(last_turn_begin({1, 1}), 0);
  EXPECT_EQ(last_turn_begin({0, 0}), 2) << "nothing is said";
}

TEST_F(SampleTest, GenerationPromptOfATrainedTokenizerMeetsItsCompletion) {
  const auto folder = folder_.path() / "trained";
  std::filesystem::create_directories(folder);
  models::train_tokenizer({"one two three four", "what is one and two"}, {.vocab_size = 300},
                          folder);
  tokenizer_ = models::Tokenizer::load(folder);
  chat_ = models::ChatTemplate::load(folder);

  // A prompt with its completion is the conversation, with the same first target.
  const Sample pair = make(R"({"prompt":[{"role":"user","content":"one"}],)"
                           R"("completion":[{"role":"assistant","content":"two"}]})");
  const Sample chat = make(
      R"({"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two"}]})");
  EXPECT_EQ(tokenizer_.decode(pair.input_ids, false), tokenizer_.decode(chat.input_ids, false));
  const auto first = [](const Sample& s) {
    return std::find(s.is_target.begin(), s.is_target.end(), 1) - s.is_target.begin();
  };
  EXPECT_TRUE(
      tokenizer_.decode(std::span(chat.input_ids).subspan(static_cast<size_t>(first(chat))), false)
          .starts_with("two"));
  EXPECT_EQ(first(pair), first(chat));

  const SampleOptions all{.assistant_only_loss = false};
  EXPECT_EQ(
      make(R"({"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"two"}]})",
           {}, all)
          .input_ids,
      chat.input_ids);
}

}  // namespace
}  // namespace retort::data
