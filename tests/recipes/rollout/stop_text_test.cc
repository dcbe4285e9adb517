// Stop texts: which are tokens, where a completion's text ends, and that rewards see no more of it.
#include "models/generation/stop_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "recipes/rollout/rollout_scorer.h"
#include "tests/data/word_tokenizer.h"
#include "tests/recipes/rollout/fake_sample_source.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using models::FinishReason;
using models::StopRule;
using test::word;

class StopText : public ::testing::Test {
 protected:
  std::string text(const std::vector<int32_t>& ids, FinishReason reason,
                   const StopRule& rule) const {
    return models::completion_text(tokenizer_, ids, reason, rule);
  }

  parallel::World world_{{.role = "student", .layout = {}}};
  test::TemporaryFolder folder_;
  models::Tokenizer tokenizer_ = test::word_tokenizer(folder_.path());
};

TEST_F(StopText, ASpecialTokenIsAnIdAndOthersAreTexts) {
  const StopRule rule = models::stop_rule(tokenizer_, {"<|end|>", "w3", "###", "<|end|>"});
  EXPECT_EQ(rule.token_ids, (std::vector<int64_t>{test::kEnd}));
  EXPECT_EQ(rule.texts, (std::vector<std::string>{"w3", "###"}))
      << "'###' is unknown to the tokenizer, whose <unk> is special but not its text";
}

TEST_F(StopText, ASpecialTokenBesideOtherTextIsRefusedByName) {
  for (const std::string stop : {"w3 <|end|>", "<|end|>\n", "<|end|></s>"}) {
    const std::string message = test::message_of([&] { models::stop_rule(tokenizer_, {stop}); },
                                                 ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("'" + stop + "'"), std::string::npos) << message;
    EXPECT_NE(message.find("special token '<|end|>'"), std::string::npos) << message;
  }
}

TEST_F(StopText, EndsBeforeTheFirstStop) {
  const std::vector<int32_t> ids{word(1), word(3), word(2)};
  const StopRule rule{.texts = {"w2", "3 w"}, .token_ids = {}};
  EXPECT_EQ(text(ids, FinishReason::kStop, rule), "w1 w") << "within a token, the earlier of two";
  EXPECT_EQ(text(ids, FinishReason::kLength, rule), "w1 w3 w2") << "no text ended it";
  EXPECT_EQ(text({word(1), test::kEnd}, FinishReason::kStop, {.texts = {"w2"}, .token_ids = {6}}),
            "w1")
      << "a stop token is no text";
}

// The first token may not end it, so what stands there is an answer's.
TEST_F(StopText, OneWithinTheFirstTokensEndsNothing) {
  const StopRule rule{.texts = {"w3"}, .token_ids = {}, .min_new_tokens = 1};
  EXPECT_EQ(text({word(3), word(1), word(3)}, FinishReason::kStop, rule), "w3 w1 ");
  EXPECT_EQ(models::find_stop("w3w3", {"w3"}, 0), 0u);
  EXPECT_EQ(models::find_stop("w3w3", {"w3"}, 2), 2u);
  EXPECT_EQ(models::find_stop("w3w1", {"w3"}, 2), std::string_view::npos);
}

// An answer that ends by a stop text equals its reference; its ids are those that were drawn.
TEST_F(StopText, RewardsSeeTheTextBeforeIt) {
  for (const bool cut : {true, false}) {
    test::FakeSampleSource source(tokenizer_, [](const data::PromptSample&, uint64_t, uint64_t) {
      models::Completion completion;
      completion.token_ids = {word(1), word(3), word(2)};
      completion.logps = completion.sampling_logps = {-1, -1, -1};
      completion.finish_reason = FinishReason::kStop;
      return completion;
    });
    auto rewards = std::make_shared<rewards::RewardSet>(std::vector<rewards::RewardOptions>{
        {.type = rewards::RewardType::kExactMatch},
        {.type = rewards::RewardType::kLength, .weight = 10, .min = 3}});
    StopRule rule;
    if (cut) rule.texts = {"w3"};
    RolloutScorer scorer(std::move(rewards), tokenizer_, rule);

    RolloutRequest request{.step = 1, .number = 1, .sample_ids = {0}};
    request.prompts.push_back({.prompt_ids = {word(5)},
                               .prompt_text = "w5",
                               .reference = "w1",
                               .question = "w5",
                               .origin = "prompts.jsonl:1"});
    PendingRollout pending = scorer.begin(source, std::move(request));
    const Rollout rollout = scorer.finish(source, std::move(pending), world_.mp());
    const RolloutSample& sample = rollout.groups.at(0).samples.at(0);
    EXPECT_EQ(sample.components.at(0), cut ? 1.0 : 0.0);
    EXPECT_EQ(sample.components.at(1), 1.0) << "all three tokens count";
    EXPECT_EQ(sample.completion.token_ids.size(), 3u);
  }
}

}  // namespace
}  // namespace retort::recipes
