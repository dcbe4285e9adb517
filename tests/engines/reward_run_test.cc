// Whole runs whose completions a model behind the KServe protocol scores, beside the same runs with
// the same rule as a reward of ours.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>

#include "base/file.h"
#include "models/config/config.h"
#include "tests/engines/engine_run.h"
#include "tests/engines/reward_server.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

class RewardRunTest : public EngineRunTest {
 protected:
  static void SetUpTestSuite() { make_files(); }
  static void TearDownTestSuite() { remove_files(); }
  static int64_t vocab_rows() { return models::read_model_config(file("model-1")).vocab_size; }

  // A role that the servers play.
  static std::string judge(const std::vector<const RewardServer*>& servers) {
    std::string urls;
    for (const RewardServer* server : servers)
      urls += (urls.empty() ? "'" : ", '") + server->url() + "'";
    return "judge: {external: {engine: kserve, url: [" + urls +
           "], served_model: small, timeout: 30s, load_timeout: 60s, tokenizer: " +
           file("model-2") + "}}";
  }
  static constexpr const char* kOurs =
      "{type: length, min: 2, max: 4}, {type: length, name: at_all, min: 1, weight: 0.5}";
  static constexpr const char* kTheirs =
      "{type: model, role: judge, label: 1}, {type: length, name: at_all, min: 1, weight: 0.5}";
};

TEST_F(RewardRunTest, IsTheRunWithTheSameRuleOfOurs) {
  RewardServer server(vocab_rows());
  const fs::path run = launched("theirs", grpo(kTheirs, judge({&server})));
  const fs::path ours = launched("ours", grpo(kOurs));
  expect_learnt(run);
  expect_same_losses(run, ours, 0);
  EXPECT_EQ(column(run, "reward"), column(ours, "reward"));
  EXPECT_GE(server.scored(), 3 * 4);

  // What the probe found, how often the role was asked, and that numbers may differ.
  const Json contract = Json::parse(read_file(run / "contracts/judge.json"));
  EXPECT_EQ(contract.at("rewards"), 2);
  EXPECT_EQ(contract.at("reward_repeated").at("largest"), 0.0);
  EXPECT_FALSE(column(run, "rpc/judge/reward.score/calls").empty());
  EXPECT_FALSE(Json::parse(read_file(run / "status.json")).at("reproducible").get<bool>());
}

// The run's own process of the role is killed while it asks: it comes back, and the batch is asked
// for again.
TEST_F(RewardRunTest, RoleThatIsKilledComesBack) {
  constexpr int64_t kInTheMiddle = 60;
  std::atomic<bool> asked{false}, killed{false};
  RewardServer server(vocab_rows());
  server.before_answer = [&](int64_t scored) {
    if (scored < kInTheMiddle) return;
    asked = true;
    wait_until([&] { return killed.load(); }, 60s);
  };
  const fs::path run = file("killed");
  Command launch(
      {retort_binary(), "launch", written("killed", grpo(kTheirs, judge({&server}), 40)).string()});
  ASSERT_TRUE(wait_until([&] { return asked.load(); }, 60s));
  const int pid = role_process(run.parent_path(), "judge");
  ASSERT_GT(pid, 0);
  ::kill(pid, SIGKILL);
  killed = true;
  const CommandResult result = launch.wait(120s);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("1 of 3 times"), std::string::npos) << result.output;
  expect_same_losses(run, launched("killed-ours", grpo(kOurs, "", 40)), 0);
  expect_learnt(run);
}

TEST_F(RewardRunTest, SeveralAddressesAreReplicas) {
  RewardServer first(vocab_rows()), second(vocab_rows());
  const fs::path run = launched("replicas", grpo(kTheirs, judge({&first, &second})));
  expect_same_losses(run, launched("replicas-ours", grpo(kOurs)), 0);
  EXPECT_TRUE(fs::exists(run / "contracts/judge-1.json"));
}

// Every second batch would be scored by another model, and no score would show it.
TEST_F(RewardRunTest, ReplicaOfAnotherModelIsRefusedBeforeTheRun) {
  RewardServer first(vocab_rows()), other(vocab_rows());
  other.off_by = 0.25F;
  const fs::path recipe = written("other-replica", grpo(kTheirs, judge({&first, &other})));
  const CommandResult result = retort({"launch", recipe}, 120s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("give the same tokens other numbers"), std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("judge/1"), std::string::npos) << result.output;
  EXPECT_EQ(metrics_rows(file("other-replica")), 0u);
}

TEST_F(RewardRunTest, LabelThatTheModelHasNotIsRefusedBeforeTheRun) {
  RewardServer server(vocab_rows());
  const fs::path recipe =
      written("label", grpo("{type: model, role: judge, label: 2}", judge({&server})));
  const CommandResult result = retort({"launch", recipe}, 120s);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("label is 2"), std::string::npos) << result.output;
  EXPECT_EQ(metrics_rows(file("label")), 0u);
}

}  // namespace
}  // namespace retort::test
