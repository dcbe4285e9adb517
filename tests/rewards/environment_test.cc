// The reward that an environment gives, and episodes that cannot be scored.
#include "tests/rewards/reward_support.h"

namespace retort::rewards {
namespace {
using test::input_of, test::message_of;

RewardInput episode(std::optional<double> reward, std::string unscorable = "") {
  RewardInput input = input_of("w1");
  input.episode = {.reward = reward, .messages = "[]", .unscorable = std::move(unscorable)};
  return input;
}

RewardSet environment_and_length() {
  return RewardSet({{.type = RewardType::kEnvironment, .weight = 2.0},
                    {.type = RewardType::kLength, .min = 0}});
}

TEST(EnvironmentReward, IsWhatTheEnvironmentSaid) {
  RewardSet set = environment_and_length();
  EXPECT_EQ(set.names(), (std::vector<std::string>{"environment", "length"}));
  const std::vector<Scored> scores = set.score({episode(0.25), episode(-1.0)});
  EXPECT_EQ(scores.at(0).components.at(0), 0.25);
  EXPECT_EQ(scores.at(0).total, 2 * 0.25 + 1);
  EXPECT_EQ(scores.at(1).total, 2 * -1.0 + 1);
}

TEST(EnvironmentReward, ALostEpisodeIsUnscorableAndNeverZero) {
  RewardSet set = environment_and_length();
  const std::vector<Scored> scores =
      set.score({episode(0.25), episode(std::nullopt, "tools/1 is gone"), episode(0.5)});
  EXPECT_EQ(scores.at(0).total, 1.5);
  EXPECT_EQ(scores.at(1).total, std::nullopt);
  EXPECT_EQ(scores.at(1).components, (std::vector<std::optional<double>>(2)));
  EXPECT_EQ(scores.at(2).total, 2.0);

  EXPECT_EQ(set.score({episode(std::nullopt, "gone")}).at(0).total, std::nullopt);
}

TEST(EnvironmentReward, AnEpisodeWithoutARewardIsAnError) {
  RewardSet set = environment_and_length();
  const auto refusal = [&](const RewardInput& input) {
    return message_of([&] { set.score({input}); }, ErrorCode::kInvalidArgument);
  };
  const std::string none = refusal(episode(std::nullopt));
  EXPECT_NE(none.find("reward 'environment': train.jsonl:17 has no reward; expected a number of "
                      "get_reward(), or of a program or service {\"close\": N, "),
            std::string::npos)
      << none;
  EXPECT_NE(refusal(input_of("w1")).find("drawn without an environment"), std::string::npos);
}

TEST(EnvironmentReward, ATotalThatIsInfiniteIsAnError) {
  RewardSet set = environment_and_length();
  EXPECT_EQ(set.score({episode(8e307)}).at(0).total, 2 * 8e307 + 1);
  const std::string message =
      message_of([&] { set.score({episode(0.5), episode(-1e308)}); }, ErrorCode::kInvalidArgument);
  EXPECT_NE(message.find("rewards: the weighted sum of train.jsonl:17 is infinite"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace retort::rewards
