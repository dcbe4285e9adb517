// GRPO with a generator whose samples are ended by every push (weight_sync.in_flight: abort), with
// and without an evaluation after every step: what is trained on is the same.
#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "recipes/rollout/rollout_run.h"
#include "rpc/agent.h"
#include "tests/recipes/objectives/grpo_fixture.h"

namespace retort::recipes {
namespace {

// Evaluates beside an objective, as grpo's run does.
class BesideObjective : public RolloutRun {
 public:
  BesideObjective(RunContext& context, roles::Trainer& trainer,
                  std::shared_ptr<SampleSource> samples, GrpoObjective& objective, bool pushes)
      : RolloutRun(context), objective_(objective), pushes_(pushes) {
    trainer_ = &trainer;
    samples_ = std::move(samples);
    scorer_ = std::make_shared<RolloutScorer>(
        std::make_shared<rewards::RewardSet>(context.recipe().rewards), context.tokenizer);
  }
  Objective& objective() override { return objective_; }

 protected:
  void begin(const LoopState&) override {}
  std::vector<PendingRollout*> in_flight() override { return objective_.in_flight(); }
  bool may_push_after(int64_t step) const override {
    return pushes_ || objective_.pushes_after(step);
  }

 private:
  GrpoObjective& objective_;
  const bool pushes_;  // after every step, whatever the objective says
};

enum class Evaluates { kNever, kAsARun, kWithPushesOfItsOwn };

class GrpoEvaluationTest : public GrpoTest {
 protected:
  // Other tokens from other weights.
  static models::Completion answer(const data::PromptSample&, uint64_t sample_id,
                                   uint64_t version) {
    return test::numbered_answer(sample_id + 5 * version);
  }

  // What each step trains on: its tokens, and the version that drew them.
  struct Trained {
    std::vector<std::vector<int64_t>> tokens;
    std::vector<double> versions;
    bool operator==(const Trained&) const = default;
  };
  Trained train(Setting setting, Evaluates evaluates) {
    setting.answer = answer;
    const Run run = start(setting);
    run.samples->push_ends_samples = true;

    // As a rank of the student has it.
    RankContext rank;
    rank.recipe.data.max_length = 32;
    rank.recipe.data.train = {{.path = (files_.path() / "prompts.jsonl").string()}};
    rank.recipe.data.eval = rank.recipe.data.train;
    rank.recipe.generation.emplace().max_new_tokens = test::kLongestAnswer;
    rank.recipe.rewards = test::length_rewards();
    rank.run_folder = files_.path();
    rpc::Agent agent({.name = "student/0", .secret = "s"});
    rpc::PeerLinks links(agent, {.find = [](const std::string& peer, Deadline) -> std::string {
                           throw Error(ErrorCode::kUnavailable, "nobody serves " + peer);
                         }});
    RunContext context{.rank = rank,
                       .world = world_,
                       .tokenizer = files_.tokenizer(),
                       .chat = test::chat_template(),
                       .agent = agent,
                       .links = links};
    BesideObjective beside(context, trainer_, run.samples, *run.objective,
                           evaluates == Evaluates::kWithPushesOfItsOwn);

    // Nothing is computed: what a step is drawn from is what it is trained on.
    Trained trained;
    StepSums nothing;
    nothing.values.resize(run.objective->num_values(), 0.0);
    for (int64_t step = 1; step <= setting.max_steps; ++step) {
      const StepInfo info = run.objective->next_step(step);
      for (size_t i = 0; i < info.micro_batches; ++i) {
        const at::Tensor ids = run.objective->tokens(i).input_ids.contiguous();
        trained.tokens.emplace_back(ids.const_data_ptr<int64_t>(),
                                    ids.const_data_ptr<int64_t>() + ids.numel());
      }
      MetricsRow row{.step = step, .values = {}};
      run.objective->finish_step(nothing, row);
      trained.versions.push_back(metric(row, "weight_version"));
      if (evaluates != Evaluates::kNever) beside.evaluator()(step);
    }
    return trained;
  }
};

TEST_F(GrpoEvaluationTest, EndsNoSamplesThatTheNextStepWouldNotEnd) {
  const Setting settings[] = {
      {.grpo = {.max_staleness = 1}},
      {.grpo = {.max_staleness = 3}, .sync_every_steps = 2},
      {.grpo = {.max_staleness = 3}, .sync_every_steps = 3, .save_steps = 6},
      {.grpo = {.num_iterations = 2, .max_staleness = 5}, .sync_every_steps = 4},
  };
  for (const Setting& setting : settings) {
    const Trained alone = train(setting, Evaluates::kNever);
    EXPECT_EQ(train(setting, Evaluates::kAsARun), alone);

    // Samples were ended at all, and more of them would be if the evaluation had its way.
    const std::set<double> versions(alone.versions.begin(), alone.versions.end());
    EXPECT_GT(versions.size(), 1u);
    if (setting.sync_every_steps > 1) {
      EXPECT_NE(train(setting, Evaluates::kWithPushesOfItsOwn), alone);
    }
  }
}

}  // namespace
}  // namespace retort::recipes
