// numeric with a program that compares what is no number.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/rewards/player.h"
#include "tests/rewards/reward_support.h"

namespace retort::rewards {
namespace {
using std::chrono::milliseconds;
using test::input_of, test::message_of;

RewardOptions symbolic(const std::string& part) {
  return {.type = RewardType::kNumeric, .name = "math", .symbolic = test::player(part)};
}

TEST(SymbolicReward, AsksOnlyWhatNumbersDoNotDecide) {
  RewardSet set(std::vector<RewardOptions>{symbolic("compares")});
  const struct {
    const char *completion, *reference;
    std::optional<double> expected;
  } cases[] = {
      {"8", "7", 0},
      {"it is \\boxed{x+3}, of 9", "#### 3+x", 1},
      {"so\n3+x\n", "work: 1\n\nx+3 ", 1},
      {"\\boxed{a\nb}", "a\nb", 0},
      {"x+4", "x+3", 0},
      {"1/2", "0.5", 1},
      {"ab", "?", std::nullopt},
      {"\\boxed{ab", "ba", 0},
      {"", "ba", 0},
      {"21x", "12x", 1},
  };
  std::vector<RewardInput> inputs;
  for (const auto& c : cases)
    inputs.push_back(input_of(c.completion, c.reference));
  for (int batch = 0; batch < 2; ++batch) {
    const std::vector<Scored> scored = set.score(inputs);
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_EQ(scored[i].total, cases[i].expected) << inputs[i].completion;
  }
  EXPECT_NE(message_of([&] { set.score({input_of("7", " ")}); }).find("has no reference"),
            std::string::npos);
}

// Those of a command, by the reward's name.
TEST(SymbolicReward, AProgramThatFailsIsAnErrorAndNotAZero) {
  const auto message_from = [](RewardOptions options, ErrorCode code) {
    RewardSet set(std::vector<RewardOptions>{options});
    EXPECT_EQ(set.score({input_of("4", "4")})[0].total, 1.0) << "it is not asked";
    return message_of([&] { set.score({input_of("x", "y")}); }, code);
  };
  EXPECT_NE(message_from(symbolic("exits"), ErrorCode::kPeerLost).find("exited with code 3"),
            std::string::npos);
  EXPECT_NE(message_from(symbolic("rubbish"), ErrorCode::kCorrupt).find("is not a JSON object"),
            std::string::npos);
  const std::string half = message_from(symbolic("gives_half"), ErrorCode::kCorrupt);
  EXPECT_TRUE(half.starts_with("reward 'math': command '")) << half;
  EXPECT_NE(half.find("it gave train.jsonl:17 the score 0.5"), std::string::npos) << half;

  RewardOptions late = symbolic("hangs");
  late.timeout = milliseconds(300);
  EXPECT_NE(message_from(late, ErrorCode::kTimeout).find("are not scored after 300ms (timeout)"),
            std::string::npos);
  RewardOptions missing = symbolic("compares");
  missing.symbolic = {"/no/such/program"};
  EXPECT_EQ(message_of([&] { RewardSet set(std::vector<RewardOptions>{missing}); }),
            "reward 'math': cannot start '/no/such/program': No such file or directory");
}

using Totals = std::vector<std::optional<double>>;

Totals totals(RewardSet& set, const std::vector<RewardInput>& inputs) {
  Totals result;
  for (const Scored& scored : set.score(inputs))
    result.push_back(scored.total);
  return result;
}

// A program answers null for what takes longer: together all pairs have the time of their batch.
TEST(SymbolicReward, APairIsToldItsPartOfTheTime) {
  RewardOptions options = symbolic("compares_seconds");
  options.timeout = milliseconds(60'000);
  RewardSet set(std::vector<RewardOptions>{options});
  const struct {
    size_t pairs;
    const char* seconds;
  } cases[] = {{1, "5"}, {9, "5"}, {16, "3"}, {64, "0.75"}};
  for (const auto& c : cases)
    EXPECT_EQ(totals(set, std::vector<RewardInput>(c.pairs, input_of("x", c.seconds))),
              Totals(c.pairs, 1.0))
        << c.pairs;
}

// With a program that is up: it has answered within the time of a batch.
std::unique_ptr<RewardSet> slow_comparisons(Duration timeout) {
  RewardOptions options = symbolic("compares_slowly");
  options.timeout = timeout;
  for (int tried = 0; tried < 100; ++tried) {
    auto set = std::make_unique<RewardSet>(std::vector<RewardOptions>{options});
    if (!test::thrown([&] { set->score({input_of("same", "x")}); })) return set;
  }
  ADD_FAILURE() << "the program does not start in time";
  return nullptr;
}

// What a model writes must not end its training.
TEST(SymbolicReward, WhatIsNotComparedInTimeHasNoScoreAndTheProgramIsStartedAgain) {
  const auto set = slow_comparisons(milliseconds(3'000));
  ASSERT_NE(set, nullptr);
  const RewardInput same = input_of("same", "x"), slow = input_of("hangs", "x");
  // Behind a pair that takes for ever nothing is compared.
  EXPECT_EQ(totals(*set, {same, input_of("y", "x"), slow, same, input_of("4", "4")}),
            (Totals{1.0, 0.0, std::nullopt, std::nullopt, 1.0}));
  EXPECT_EQ(totals(*set, {same, same}), (Totals{1.0, 1.0}));
}

// One that has answered once, and then nothing in three batches, is not slow.
TEST(SymbolicReward, AProgramThatAnswersNothingAnyMoreIsAnError) {
  const auto set = slow_comparisons(milliseconds(700));
  ASSERT_NE(set, nullptr);
  const std::vector<RewardInput> slow{input_of("hangs", "x")};
  for (int batch = 0; batch < 2; ++batch)
    EXPECT_EQ(totals(*set, slow), Totals{std::nullopt});
  const std::string message = message_of([&] { set->score(slow); }, ErrorCode::kTimeout);
  EXPECT_NE(message.find("1 of 1 completions are not scored after 700ms (timeout)"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace retort::rewards
