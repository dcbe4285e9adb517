// The evaluation of a run over prompts on three data-parallel ranks: its sums, and what all ranks
// end with when one of them fails.
#include "recipes/rollout/rollout_run.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "parallel/vote.h"
#include "recipes/rollout/pass_at_k.h"
#include "rpc/agent.h"
#include "tests/recipes/loop/rank_threads.h"
#include "tests/recipes/rollout/fake_sample_source.h"
#include "tests/recipes/rollout/prompt_files.h"
#include "tests/roles/nano_model.h"

namespace retort::recipes {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kRanks = 3;
constexpr int64_t kPrompts = 5;

// A run that only evaluates, with samples that no generator draws.
class EvaluatingRun : public RolloutRun {
 public:
  EvaluatingRun(RunContext& context, roles::Trainer& trainer, std::shared_ptr<SampleSource> samples)
      : RolloutRun(context) {
    trainer_ = &trainer;
    samples_ = std::move(samples);
    scorer_ = std::make_shared<RolloutScorer>(
        std::make_shared<rewards::RewardSet>(context.recipe().rewards), context.tokenizer);
  }
  bool may_push = true;
  Objective& objective() override { throw Error(ErrorCode::kUnavailable, "it does not train"); }

 protected:
  void begin(const LoopState&) override {}
  bool may_push_after(int64_t) const override { return may_push; }
};

class RolloutRunTest : public ::testing::Test {
 protected:
  using Answer = test::FakeSampleSource::Answer;

  // As a rank of the student would.
  MetricsRow evaluate(parallel::World& world, const Answer& answer, bool may_push = true) const {
    RankContext rank;
    rank.recipe.data.max_length = 32;
    rank.recipe.data.train = {{.path = (files_.path() / "prompts.jsonl").string()}};
    rank.recipe.data.eval = rank.recipe.data.train;
    rank.recipe.generation.emplace().max_new_tokens = 8;
    rank.recipe.generation->eval_num_generations = num_generations;
    rank.recipe.generation->eval_pass_reward = 0.5;
    rank.recipe.rewards = test::length_rewards();
    rank.run_folder = files_.path();
    rpc::Agent agent({.name = "student/" + std::to_string(world.dp().rank()), .secret = "s"});
    rpc::PeerLinks links(agent, {.find = [](const std::string& peer, Deadline) -> std::string {
                           throw Error(ErrorCode::kUnavailable, "nobody serves " + peer);
                         }});
    RunContext context{.rank = rank,
                       .world = world,
                       .tokenizer = files_.tokenizer(),
                       .chat = test::chat_template(),
                       .agent = agent,
                       .links = links};

    roles::Trainer trainer(
        models::Decoder::random(roles::nano_model(models::Family::kQwen3, true, 1), 7, at::kFloat),
        world, {});
    EvaluatingRun run(context, trainer,
                      std::make_shared<test::FakeSampleSource>(files_.tokenizer(), answer));
    run.may_push = may_push;
    return run.evaluator()(3);
  }

  // One of them for each prompt: the prompts begin with different words.
  static models::Completion answer_to(const data::PromptSample& prompt) {
    return test::numbered_answer(static_cast<uint64_t>(prompt.prompt_ids.back()));
  }

  test::PromptFiles files_{kPrompts};
  int64_t num_generations = 1;
};

// Against all subsets of four completions.
TEST(PassAtK, IsTheShareOfSubsetsWithOneThatPasses) {
  for (int64_t passed = 0; passed <= 4; ++passed)
    for (int64_t k = 1; k <= 4; ++k) {
      int subsets = 0, hits = 0;
      for (unsigned chosen = 0; chosen < 16; ++chosen) {
        if (std::popcount(chosen) != k) continue;
        ++subsets;
        hits += (chosen & ((1u << passed) - 1)) != 0;
      }
      EXPECT_NEAR(pass_at_k(4, passed, k), static_cast<double>(hits) / subsets, 1e-12)
          << passed << " " << k;
    }
  EXPECT_EQ(reported_ks(6), (std::vector<int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(reported_ks(8), (std::vector<int64_t>{1, 2, 4, 8}));
}

TEST_F(RolloutRunTest, SeveralCompletionsOfAPromptGivePassAtK) {
  num_generations = 3;
  const auto numbered = [](uint64_t id) { return test::numbered_answer(id % (uint64_t{1} << 62)); };
  double pass[2] = {0, 0};
  for (uint64_t row = 0; row < kPrompts; ++row) {
    int64_t passed = 0;
    for (uint64_t g = 0; g < 3; ++g)
      passed += test::length_reward(numbered(row * 3 + g)) >= 0.5;
    pass[0] += pass_at_k(3, passed, 1) / kPrompts;
    pass[1] += pass_at_k(3, passed, 2) / kPrompts;
  }

  const auto errors = test::run_rank_threads(kRanks, [&](parallel::World& world) {
    const MetricsRow row = evaluate(
        world, [&](const data::PromptSample&, uint64_t id, uint64_t) { return numbered(id); });
    const auto value = [&](size_t i) { return std::get<double>(row.values.at(i).second); };
    const bool right =
        row.values.size() == 8 && row.values[5].first == "eval_pass@1" &&
        std::abs(value(5) - pass[0]) < 1e-12 && row.values[6].first == "eval_pass@2" &&
        std::abs(value(6) - pass[1]) < 1e-12 && std::get<int64_t>(row.values[1].second) == kPrompts;
    if (!right) throw Error(ErrorCode::kMismatch, "another pass@k: " + std::to_string(value(5)));
  });
  for (const std::optional<Error>& error : errors)
    EXPECT_FALSE(error) << error->what();
  EXPECT_GT(pass[1], pass[0]) << "or the test shows nothing";
}

TEST_F(RolloutRunTest, EvaluationCountsThePromptsOfAllRanks) {
  double reward = 0;
  double tokens = 0;
  for (int64_t row = 0; row < kPrompts; ++row) {
    const models::Completion completion = answer_to(*files_.prompts()->get(row));
    reward += test::length_reward(completion);
    tokens += static_cast<double>(completion.token_ids.size());
  }

  std::vector<MetricsRow> rows(kRanks);
  const auto errors = test::run_rank_threads(kRanks, [&](parallel::World& world) {
    rows.at(static_cast<size_t>(world.dp().rank())) = evaluate(
        world,
        [](const data::PromptSample& prompt, uint64_t, uint64_t) { return answer_to(prompt); });
  });
  for (const std::optional<Error>& error : errors)
    ASSERT_FALSE(error) << error->what();
  for (const MetricsRow& row : rows) {
    ASSERT_EQ(row.values.size(), 5u);
    EXPECT_DOUBLE_EQ(std::get<double>(row.values[0].second), reward / kPrompts) << "eval_reward";
    EXPECT_EQ(std::get<int64_t>(row.values[1].second), kPrompts) << "eval_num_prompts";
    EXPECT_EQ(std::get<int64_t>(row.values[2].second), 0) << "eval_num_unscorable";
    EXPECT_DOUBLE_EQ(std::get<double>(row.values[3].second), tokens / kPrompts) << "mean length";
    EXPECT_EQ(std::get<int64_t>(row.values[4].second), 4) << "eval_weight_version";
  }
}

// A push that training does not make would change what it is trained on.
TEST_F(RolloutRunTest, EvaluatesTheWeightsThatAreThereWhereNoPushMayBe) {
  const auto answer = [](const data::PromptSample& prompt, uint64_t, uint64_t) {
    return answer_to(prompt);
  };
  const auto errors = test::run_rank_threads(kRanks, [&](parallel::World& world) {
    const MetricsRow row = evaluate(world, answer, /*may_push=*/false);
    if (std::get<int64_t>(row.values.at(4).second) != 0)
      throw Error(ErrorCode::kMismatch, "weights were pushed");
  });
  for (const std::optional<Error>& error : errors)
    EXPECT_FALSE(error) << error->what();
}

// The others would wait for it in the sums, until their timeout.
TEST_F(RolloutRunTest, ARankThatFailsInAnEvaluationEndsAllWithItsError) {
  constexpr int64_t kFailing = 1;
  const auto errors = test::run_rank_threads(
      kRanks,
      [&](parallel::World& world) {
        const bool fails = world.dp().rank() == kFailing;
        evaluate(world, [fails](const data::PromptSample& prompt, uint64_t, uint64_t) {
          if (fails) throw Error(ErrorCode::kResourceExhausted, "the generator's memory is full");
          return answer_to(prompt);
        });
      },
      30s);

  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const std::optional<Error>& error = errors.at(static_cast<size_t>(rank));
    ASSERT_TRUE(error) << "rank " << rank << " went on";
    EXPECT_EQ(error->code(), ErrorCode::kResourceExhausted) << rank << ": " << error->what();
    EXPECT_EQ(error->message(), "the generator's memory is full") << rank;
    EXPECT_EQ(parallel::failed_rank(*error, "student"),
              rank == kFailing ? std::nullopt : std::optional<int>(kFailing));
  }
}

}  // namespace
}  // namespace retort::recipes
