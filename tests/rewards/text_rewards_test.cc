// The rewards that need nothing but the text.
#include "tests/rewards/reward_support.h"

namespace retort::rewards {
namespace {
using test::input_of, test::message_of;

double score(const RewardOptions& options, const RewardInput& input) {
  RewardSet set(std::vector<RewardOptions>{options});
  return set.score({input}).at(0).total.value();
}

TEST(TextRewards, ExactMatch) {
  const RewardOptions options{.type = RewardType::kExactMatch};
  EXPECT_EQ(score(options, input_of(" Paris\n", "Paris")), 1);
  EXPECT_EQ(score(options, input_of("paris", "Paris")), 0);
  EXPECT_EQ(score(options, input_of("Paris.", "Paris")), 0);
  EXPECT_EQ(score(options, input_of("", "Paris")), 0);
}

TEST(TextRewards, Numeric) {
  const RewardOptions options{.type = RewardType::kNumeric};
  const struct {
    const char *completion, *reference;
    double expected;
  } cases[] = {
      {"6 * 7 = 42 #### 42", "long story #### 42", 1},
      {"#### 42, not 43", "42", 1},
      {"#### 42 or 43", "42", 0},
      {"x = 5 or x = 7", "7", 0},
      {"\xe2\x88\x92"
       "5",
       "5", 0},
      {"3/4", "1/4", 0},
      {"\\boxed{42", "42", 0},
      {"\\boxed{x+3}", "\\boxed{y+3}", 0},
      {"The answer is \\boxed{1{,}200}. I checked 3 times.", "1200", 1},
      {"it is 42.0", "42", 1},
      {"42 #### 41", "42", 0},
      {"no idea", "42", 0},
      {"", "42", 0},
      {"\\boxed{\\frac{6}{4}}", "1.5", 1},
      {"\\boxed{\\frac{4}{2}}", "2", 0},
  };
  for (const auto& c : cases)
    EXPECT_EQ(score(options, input_of(c.completion, c.reference)), c.expected) << c.completion;
}

TEST(TextRewards, AMissingReferenceIsAnErrorAndNotAZero) {
  for (const RewardType type : {RewardType::kNumeric, RewardType::kExactMatch}) {
    const std::string message =
        message_of([&] { score({.type = type, .name = "answer"}, input_of("42", " ")); });
    EXPECT_TRUE(message.starts_with("reward 'answer': train.jsonl:17 has no reference")) << message;
  }
  EXPECT_NE(message_of([] {
              score({}, input_of("42", "forty-two"));
            }).find("train.jsonl:17 holds no number: 'forty-two'"),
            std::string::npos);
  // A reference that holds numbers, but none that is its answer, would give 0 for ever.
  const std::string unclear = message_of([] { score({}, input_of("7", "5 to 7\nin all")); });
  EXPECT_NE(unclear.find("train.jsonl:17 holds no number that can be read as its answer: '5 to 7"),
            std::string::npos)
      << unclear;
  RewardInput anonymous = input_of("42");
  anonymous.origin.clear();
  EXPECT_NE(
      message_of([&] { score({}, anonymous); }).find("the sample with the prompt 'the prompt'"),
      std::string::npos);
}

TEST(TextRewards, Regex) {
  const auto found = [](const char* pattern, const std::string& text) {
    return score({.type = RewardType::kRegex, .pattern = pattern}, input_of(text));
  };
  EXPECT_EQ(found("b+c", "abbbcd"), 1);
  EXPECT_EQ(found("^b", "ab"), 0);
  EXPECT_EQ(found("a.c", "a\nc"), 0) << "dots stop at newlines, (?s) lets them pass";
  EXPECT_EQ(found("(?s)a.c", "a\nc"), 1);
  EXPECT_EQ(found("(?i)YES", "yes"), 1);
  EXPECT_EQ(found("^(\\w+) \\1$", "so so"), 1);
  EXPECT_EQ(found("^.$", "\xc3\xa9"), 1) << "characters, not bytes";
  EXPECT_EQ(found("b$", "a\xff\xfe b"), 1) << "bytes that are no UTF-8 do not disturb";
  EXPECT_EQ(found("a", ""), 0);
}

TEST(TextRewards, FormatMatchesTheWholeCompletion) {
  const auto fits = [](const std::string& text) {
    return score({.type = RewardType::kFormat}, input_of(text));
  };
  EXPECT_EQ(fits("<think>\nThis is my reasoning.\n</think>\nThis is my answer."), 1);
  EXPECT_EQ(fits("<think>\nThis is my reasoning.\nThis is my answer."), 0);
  EXPECT_EQ(fits("<think></think>"), 1);
  EXPECT_EQ(fits(" <think></think>"), 0);
  EXPECT_EQ(fits("<think>a</think>b<think>c</think>"), 0) << "one block";
  EXPECT_EQ(fits(""), 0);
  const RewardOptions own{.type = RewardType::kFormat, .pattern = "<a>.*</a>|b"};
  EXPECT_EQ(score(own, input_of("<a>\n\n</a>")), 1);
  EXPECT_EQ(score(own, input_of("b")), 1);
  EXPECT_EQ(score(own, input_of("bb")), 0);
  EXPECT_EQ(score(own, input_of("b\n")), 0);
}

TEST(TextRewards, APatternThatBacktracksWithoutEndIsAnError) {
  const RewardInput input = input_of(std::string(50, 'a') + "b");
  const std::string message =
      message_of([&] { score({.type = RewardType::kRegex, .pattern = "^(a+)+$"}, input); },
                 ErrorCode::kResourceExhausted);
  EXPECT_NE(
      message.find("'^(a+)+$' cannot be decided on the completion of train.jsonl:17 (51 bytes)"),
      std::string::npos)
      << message;
  // A long text overflows no stack: (a|b)* recurses once a character in some engines.
  EXPECT_EQ(score({.type = RewardType::kRegex, .pattern = "^(a|b)*$"},
                  input_of(std::string(200'000, 'a'))),
            1);
  EXPECT_EQ(score({.type = RewardType::kFormat},
                  input_of("<think>" + std::string(1'000'000, 'x') + "</think>")),
            1);
}

TEST(TextRewards, Length) {
  RewardInput input = input_of("h\xc3\xa9llo");
  input.num_tokens = 3;
  const RewardOptions tokens{.type = RewardType::kLength, .min = 2, .max = 3};
  EXPECT_EQ(score(tokens, input), 1);
  input.num_tokens = 4;
  EXPECT_EQ(score(tokens, input), 0);
  input.num_tokens = 1;
  EXPECT_EQ(score(tokens, input), 0);
  EXPECT_EQ(score({.type = RewardType::kLength, .min = 5, .unit = LengthUnit::kCharacters}, input),
            1);
  EXPECT_EQ(score({.type = RewardType::kLength, .min = 6, .unit = LengthUnit::kCharacters}, input),
            0);
  EXPECT_EQ(score({.type = RewardType::kLength, .max = 5, .unit = LengthUnit::kCharacters}, input),
            1);
}

}  // namespace
}  // namespace retort::rewards
