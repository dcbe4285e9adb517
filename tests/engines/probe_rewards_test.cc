// Tests what the probe finds of engines that score completions, and which of them are refused.
#include <gtest/gtest.h>

#include <limits>

#include "engines/contract/options.h"
#include "engines/probing/probe.h"
#include "tests/engines/probe_fixture.h"
#include "tests/engines/reward_engine.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

using namespace std::chrono_literals;

class RewardProbeTest : public ProbeTest {
 protected:
  static Contract probed(RewardEngine& engine) {
    const Contract contract = probe({.engine = engine,
                                     .tokenizer = tokenizer(),
                                     .kind = EngineKind::kKserve,
                                     .url = "http://host:8000",
                                     .vocab_rows = tokenizer().vocab_size(),
                                     .end_tokens = {tokenizer().eos_id()}},
                                    {.nonce = 3}, Deadline::after(1min));
    EXPECT_LE(contract.requests, kMaxProbeRequests);
    return contract;
  }
  static Needs needs(int64_t label = 0) {
    return {.what = Purpose::kRewards, .role = "judge", .objective = "grpo", .label = label};
  }
};

TEST_F(RewardProbeTest, SteadyNumbersAreAccepted) {
  RewardEngine engine(by_rule, 2);
  const Contract contract = probed(engine);
  EXPECT_EQ(contract.rewards, 2);
  EXPECT_EQ(contract.reward_repeated.count, 2) << "both numbers";
  EXPECT_EQ(contract.reward_repeated.largest, 0);
  EXPECT_EQ(contract.reward_batched.largest, 0);
  EXPECT_TRUE(contract.highest_id);
  EXPECT_NO_THROW(check_contract(contract, needs(1)));
  test::expect_error(ErrorCode::kInvalidArgument, "label is 2",
                     [&] { check_contract(contract, needs(2)); });
  EXPECT_NE(contract_table(contract).find("rewards of 2 numbers"), std::string::npos);
  EXPECT_EQ(contract_from_json(to_json(contract)).rewards, 2);
}

TEST_F(RewardProbeTest, NumbersThatChangeAreRefused) {
  int64_t asked = 0;
  RewardEngine moody([&](const RewardRequest&) { return static_cast<double>(++asked); });
  const Contract contract = probed(moody);
  test::expect_error(ErrorCode::kMismatch, "when it is asked about again",
                     [&] { check_contract(contract, needs()); });

  // The fourth and later questions are those beside others.
  asked = 0;
  RewardEngine crowded([&](const RewardRequest&) { return ++asked < 4 ? 1.0 : 2.0; });
  const Contract beside = probed(crowded);
  test::expect_error(ErrorCode::kMismatch, "beside others",
                     [&] { check_contract(beside, needs()); });
}

TEST_F(RewardProbeTest, ANumberThatIsNoneEndsTheProbe) {
  RewardEngine engine([](const RewardRequest&) { return std::numeric_limits<double>::infinity(); });
  EXPECT_EQ(test::code_of([&] { probed(engine); }), ErrorCode::kCorrupt);
}

TEST_F(RewardProbeTest, AnEngineWithoutRewardsIsRefused) {
  const Contract none{.highest_id = true, .ids = IdProof::kText};
  test::expect_error(ErrorCode::kInvalidArgument, "this engine gives none",
                     [&] { check_contract(none, needs()); });
}

}  // namespace
}  // namespace retort::engines
