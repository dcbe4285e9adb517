// A drawn answer is scored as a reward model has read it: the ids are those of a training row.
#include <gtest/gtest.h>

#include <algorithm>

#include "recipes/data/preference.h"
#include "recipes/rollout/answer_ending.h"
#include "recipes/rollout/reward_input.h"
#include "recipes/run/inputs/answer_end.h"
#include "tests/data/word_tokenizer.h"
#include "tests/support/source_folder.h"

namespace retort::recipes {
namespace {

using EndingIds = std::vector<int32_t>;

constexpr const char* kPair =
    R"({"prompt":[{"role":"user","content":"What is 2 + 2?"}],)"
    R"("chosen":[{"role":"assistant","content":"It is 4."}],)"
    R"("rejected":[{"role":"assistant","content":"It is 5, isn't it?"}]})";

// A line break behind the end token, as ChatML, Zephyr and Gemma have it; and nothing, as Llama 3.
constexpr const char* kLineBreak =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}";
constexpr const char* kNothing =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}";

// What is drawn of a trained completion: up to and with its end token.
rewards::RewardInput drawn(const data::PreferenceSample& pair, const EndingIds& completion,
                           int32_t eos) {
  const auto end = std::find(completion.begin(), completion.end(), eos);
  rewards::RewardInput input;
  input.prompt_ids = pair.prompt_ids;
  input.completion_ids.assign(completion.begin(), std::min(end + 1, completion.end()));
  input.is_chat = true;
  return input;
}

TEST(AnswerEnding, IsThatOfATrainingRow) {
  for (const char* name : {"qwen", "llama3", "llama2", "mistral"})
    for (const char* source : {kLineBreak, kNothing}) {
      const models::Tokenizer tokenizer =
          models::Tokenizer::load(test::source_folder() / "tests/text/goldens" / name);
      const int32_t eos = tokenizer.eos_id();
      const models::ChatTemplate chat =
          models::ChatTemplate::from_source(source, "", tokenizer.id_to_token(eos));
      const data::PreferenceSample pair =
          data::make_preference(kPair, "p:1", {.path = "p"}, tokenizer, chat, 1000);
      const AnswerEnding ending(chat, tokenizer, 1000);
      for (const EndingIds& trained : {pair.chosen_ids, pair.rejected_ids}) {
        const rewards::RewardInput input = drawn(pair, trained, eos);
        EXPECT_EQ(ending.completion_of(input), trained) << name;
        EXPECT_EQ(input.completion_ids == trained, source == kNothing) << name;
      }
    }
}

class AnswerEndingOfWords : public testing::Test {
 protected:
  test::TemporaryFolder folder_;
  models::Tokenizer tokenizer_ = test::word_tokenizer(folder_.path());
  models::ChatTemplate chat_ = test::chat_template(
      "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> w7 w8 {% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}");
  rewards::RewardInput input_{.prompt_ids = {test::kUser, test::word(1)},
                              .completion_ids = {test::word(2), test::kEnd},
                              .is_chat = true};
};

TEST_F(AnswerEndingOfWords, NoMoreThanATrainingRowHasRoomFor) {
  const EndingIds whole{test::word(2), test::kEnd, test::word(7), test::word(8)};
  EXPECT_EQ(AnswerEnding(chat_, tokenizer_, 100).completion_of(input_), whole);
  EXPECT_EQ(AnswerEnding(chat_, tokenizer_, 5).completion_of(input_),
            (EndingIds{test::word(2), test::kEnd, test::word(7)}));
  EXPECT_EQ(AnswerEnding(chat_, tokenizer_, 3).completion_of(input_), input_.completion_ids);
}

TEST_F(AnswerEndingOfWords, WhatDidNotEndIsScoredAsItWasDrawn) {
  const AnswerEnding ending(chat_, tokenizer_, 100);
  rewards::RewardInput cut = input_;
  cut.truncated = true;
  EXPECT_EQ(ending.completion_of(cut), cut.completion_ids);

  rewards::RewardInput stopped = input_;  // by a text, or another end token
  stopped.completion_ids = {test::word(2), test::kEos};
  EXPECT_EQ(ending.completion_of(stopped), stopped.completion_ids);

  rewards::RewardInput strings = input_;
  strings.is_chat = false;
  EXPECT_EQ(ending.completion_of(strings), strings.completion_ids);
  EXPECT_EQ(AnswerEnding(models::ChatTemplate(), tokenizer_, 100).completion_of(input_),
            input_.completion_ids);
}

// "w7" may be the text that stopped it: it stands behind <|end|>, but it ends no answer.
TEST_F(AnswerEndingOfWords, AStopByATextIsNoEnd) {
  const AnswerEnding ending(chat_, tokenizer_, 100);
  for (const int32_t last : {test::word(7), test::word(8), test::word(9)}) {
    input_.completion_ids = {test::word(2), last};
    EXPECT_EQ(ending.completion_of(input_), input_.completion_ids) << last;
  }
}

TEST_F(AnswerEndingOfWords, AnEndThatNoCompletionEndsAtIsTold) {
  const std::vector<int64_t> ends{test::kEos, 1};
  const auto told = [&](const std::vector<int64_t>& ids, const std::vector<std::string>& stop) {
    return unheard_end(chat_, tokenizer_, ids, stop, "/models/a").value_or("");
  };
  const std::string text = told(ends, {});
  for (const char* part :
       {"ends an answer with '<|end|>' (token 6)", "/models/a ends at '</s>' (token 2), '<s>'",
        "\"eos_token_id\": [2, 1, 6]", "generation.stop"})
    EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
  EXPECT_EQ(told({test::kEos, test::kEnd}, {}), "");
  EXPECT_EQ(told(ends, {"<|end|>"}), "");
  EXPECT_NE(told(ends, {"w3"}), "");

  chat_ = test::chat_template("{% for m in messages %}{{ m.content }} w5 w6\n{% endfor %}");
  EXPECT_NE(told(ends, {}).find("the text 'w5 w6', which is no token of its own"),
            std::string::npos)
      << told(ends, {});
  chat_ = test::chat_template("{% for m in messages %}{{ m.content }}\n{% endfor %}");
  EXPECT_EQ(told(ends, {}), "") << "no end is written, so none is missed";
  chat_ = test::chat_template("{{ raise_exception('no') }}");
  EXPECT_EQ(told(ends, {}), "");
}

TEST_F(AnswerEndingOfWords, PromptsOfMessagesAreKnown) {
  const auto is_chat = [&](const char* row) {
    return reward_input(data::make_prompt(row, "p:1", {.path = "p"}, tokenizer_, chat_)).is_chat;
  };
  EXPECT_TRUE(is_chat(R"({"prompt":[{"role":"user","content":"w1"}]})"));
  EXPECT_TRUE(is_chat(R"({"messages":[{"role":"user","content":"w1"}]})"));
  EXPECT_FALSE(is_chat(R"({"prompt":"w1","answer":"w2"})"));
}

}  // namespace
}  // namespace retort::recipes
