// The reward that an episode's environment gave.
#include <string>

#include "tests/rewards/reward_support.h"

namespace retort::rewards {
namespace {

using test::expect_error;

RewardInput episode_of(std::string record) {
  RewardInput input = test::input_of("the last answer");
  input.episode = std::move(record);
  return input;
}

std::optional<double> scored(const std::string& record) {
  RewardSet set({{.type = RewardType::kEnvironment, .weight = 0.5}});
  return set.score({episode_of(record)}).at(0).total;
}

TEST(EnvironmentReward, IsTheOneThatCloseGave) {
  EXPECT_EQ(scored(R"({"reward": 1.5, "turns": 2})"), 0.75);
  EXPECT_EQ(scored(R"({"reward": -3, "metrics": {"solved": 0}})"), -1.5);
  const RewardSet set({{.type = RewardType::kEnvironment}});
  EXPECT_EQ(set.names(), std::vector<std::string>{"environment"});
}

TEST(EnvironmentReward, AnEpisodeThatItsEnvironmentFailedHasNone) {
  EXPECT_EQ(scored(R"({"reward": null, "unscorable": "the environment is gone"})"), std::nullopt);
}

TEST(EnvironmentReward, IsNotMadeUp) {
  const std::string begin = "reward 'environment': train.jsonl:17";
  expect_error(ErrorCode::kInvalidArgument, begin + " has no reward in close",
               [] { scored(R"({"reward": null})"); });
  expect_error(ErrorCode::kInvalidArgument, begin + " has no reward in close",
               [] { scored("{}"); });
  expect_error(ErrorCode::kInvalidArgument, begin + " is no episode", [] { scored(""); });
  expect_error(ErrorCode::kCorrupt, begin + ": what the episode came to is no JSON object: '[1]'",
               [] { scored("[1]"); });
  expect_error(ErrorCode::kCorrupt, "no finite number: '\"high\"'",
               [] { scored(R"({"reward": "high"})"); });
}

TEST(EnvironmentReward, TakesNoOptionsOfOthers) {
  RewardOptions options{.type = RewardType::kEnvironment};
  options.validate();
  options.role = "tools";
  test::expect_refused("role has no effect on type: environment", [&] { options.validate(); });
}

}  // namespace
}  // namespace retort::rewards
