// A judge's question, and how its answer becomes a number.
#include <fstream>
#include <memory>

#include "tests/rewards/reward_support.h"
#include "tests/support/temporary_folder.h"

namespace retort::rewards {
namespace {

using test::input_of, test::message_of;
using Scores = std::vector<std::optional<double>>;

class JudgeTest : public ::testing::Test {
 protected:
  RewardOptions options(const std::string& question, const std::string& pattern = "([0-9.]+)") {
    std::ofstream(files_ / "judge.jinja") << question;
    return {.type = RewardType::kJudge,
            .name = "taste",
            .pattern = pattern,
            .role = "judge",
            .template_file = files_ / "judge.jinja"};
  }

  // The scores of as many completions as there are answers.
  Scores scores(const RewardOptions& options, std::vector<Said> answers) {
    const ConnectRoles connect{
        .model = {}, .judge = [&](const RewardOptions& of) {
          EXPECT_EQ(of.role, "judge");
          return AskJudge{.answers =
                              [&](std::vector<std::string> questions, int64_t max_new_tokens) {
                                asked = std::move(questions);
                                longest = max_new_tokens;
                                return answers;
                              },
                          .stop = [this] { stopped = true; }};
        }};
    RewardSet set({options}, /*scores=*/true, connect);
    std::vector<RewardInput> inputs;
    for (size_t i = 0; i < answers.size(); ++i)
      inputs.push_back(input_of("answer " + std::to_string(i), i == 0 ? "4" : ""));
    Scores scores;
    for (const Scored& scored : set.score(inputs))
      scores.push_back(scored.total);
    set.stop();
    return scores;
  }

  std::vector<std::string> asked;
  int64_t longest = 0;
  bool stopped = false;

 private:
  test::TemporaryFolder files_;
};

TEST_F(JudgeTest, AsksTheTemplateAndTakesTheFirstGroupOfTheLastPlace) {
  RewardOptions how = options("{{ prompt }} / {{ completion }}\n{% if reference %}!{% endif %}",
                              "Score: ([0-9.]+)");
  EXPECT_EQ(scores(how, {{.text = "No 3. Score: 7.5 of 10"}, {.text = "Score: 2, Score: 9"}}),
            (Scores{7.5, 9.0}));
  EXPECT_EQ(asked,
            (std::vector<std::string>{"the prompt / answer 0\n!", "the prompt / answer 1\n"}));
  EXPECT_EQ(longest, 16) << "the default";
  EXPECT_TRUE(stopped);

  how.scale = 0.1;
  how.max_new_tokens = 5;
  EXPECT_EQ(scores(how, {{.text = "Score: 7.5"}}), (Scores{0.75}));
  EXPECT_EQ(longest, 5);
}

TEST_F(JudgeTest, AnswerWithoutANumberIsUnscorable) {
  const RewardOptions how = options("{{ completion }}", "([0-9.e]+)|good");
  EXPECT_EQ(scores(how, {{.text = "bad"},
                         {.text = ""},
                         {.text = "good"},
                         {.text = "1.2.3"},
                         {.text = "1e999"},
                         {.text = "4"}}),
            (Scores{{}, {}, {}, {}, {}, 4.0}));
}

// "1" may be the beginning of "10", and "1." of "1.5".
TEST_F(JudgeTest, NumberAtTheEndOfACutAnswerIsNone) {
  const RewardOptions how = options("{{ completion }}", "([0-9]+(?:\\.[0-9]+)?)");
  EXPECT_EQ(scores(how, {{.text = "it is 1", .cut = true},
                         {.text = "it is 1.", .cut = true},
                         {.text = "it is 1,", .cut = true},
                         {.text = "it is 1 of", .cut = true},
                         {.text = "it is 1", .cut = false}}),
            (Scores{{}, {}, {}, 1.0, 1.0}));
}

TEST_F(JudgeTest, WhatItThinksIsNotItsAnswer) {
  EXPECT_EQ(
      scores(options("{{ completion }}", "([0-9]+)"), {{.text = "<think>3? 4?</think> It is 8."},
                                                       {.text = "\n<think>3 or 4 of", .cut = true},
                                                       {.text = "<think>3</think> none"}}),
      (Scores{8.0, {}, {}}));
}

TEST_F(JudgeTest, WhatTheTemplateAsksForMustBeThere) {
  const std::string message = message_of([&] {
    scores(options("{{ completion }} {{ reference }}"), {{}, {}});
  });
  EXPECT_TRUE(message.starts_with("reward 'taste': train.jsonl:17: ")) << message;
  EXPECT_NE(message.find("undefined value"), std::string::npos) << message;
  EXPECT_NE(message_of([&] { scores(options("{{ complet }}"), {{}}); }).find("judge.jinja"),
            std::string::npos);
  EXPECT_NE(message_of([&] { scores(options("{% if"), {{}}); }).find("judge.jinja"),
            std::string::npos);
}

TEST_F(JudgeTest, OptionsThatCannotBeAreRefused) {
  const auto refused = [&](const std::string& part, const auto& change) {
    RewardOptions wrong = options("{{ completion }}");
    change(wrong);
    test::expect_refused(part, [&] { wrong.validate(); });
  };
  refused("needs role", [](RewardOptions& o) { o.role.reset(); });
  refused("needs template", [](RewardOptions& o) { o.template_file = ""; });
  refused("needs pattern", [](RewardOptions& o) { o.pattern.reset(); });
  refused("has no group", [](RewardOptions& o) { o.pattern = "[0-9]+"; });
  refused("is wrong at character", [](RewardOptions& o) { o.pattern = "([0-9]+"; });
  refused("scale must be", [](RewardOptions& o) { o.scale = 0; });
  refused("max_new_tokens is 0", [](RewardOptions& o) { o.max_new_tokens = 0; });
  refused("label has no effect", [](RewardOptions& o) { o.label = 1; });
  refused("template has no effect",
          [](RewardOptions& o) { o = {.type = RewardType::kNumeric, .template_file = "x"}; });
  EXPECT_NO_THROW(options("{{ completion }}").validate());
}

}  // namespace
}  // namespace retort::rewards
