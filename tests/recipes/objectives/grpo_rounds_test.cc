// Which rounds of GRPO are asked for when, and with which weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tests/recipes/objectives/grpo_fixture.h"

namespace retort::recipes {
namespace {

using Asked = test::FakeSampleSource::Asked;
using Pushed = test::FakeSampleSource::Pushed;
// The step that asked, the round, the version of the weights.
using Order = std::tuple<int64_t, uint64_t, uint64_t>;

class GrpoRoundsTest : public GrpoTest {
 protected:
  struct Step {
    StepInfo info;
    MetricsRow row;
  };
  // Draws and ends steps `first` to `last` without computing their losses.
  static std::vector<Step> draw(GrpoObjective& objective, int64_t first, int64_t last) {
    std::vector<Step> steps;
    StepSums nothing;
    nothing.values.resize(objective.num_values(), 0.0);
    for (int64_t step = first; step <= last; ++step) {
      steps.push_back({.info = objective.next_step(step), .row = {.step = step, .values = {}}});
      objective.finish_step(nothing, steps.back().row);
    }
    return steps;
  }

  // Without what the clock says.
  // Without times, and without the entropy: nothing is computed here, so it is not a number.
  static auto timeless(const MetricsRow& row) {
    auto values = row.values;
    std::erase_if(values, [](const auto& value) {
      return value.first == "reward_time" || value.first == "reward_wait_time" ||
             value.first == "entropy";
    });
    return values;
  }

  static std::vector<Order> order_of(const std::vector<Asked>& asked) {
    std::vector<Order> order;
    for (const Asked& one : asked)
      order.emplace_back(one.step, one.number, one.version);
    return order;
  }
};

TEST_F(GrpoRoundsTest, WithoutStalenessEachRoundIsAskedForByItsStep) {
  const Run run = start({});
  const std::vector<Step> steps = draw(*run.objective, 1, 3);
  EXPECT_EQ(order_of(run.samples->asked), (std::vector<Order>{{1, 0, 1}, {2, 1, 2}, {3, 2, 3}}));
  EXPECT_EQ(run.samples->pushed, (std::vector<Pushed>{{1, 0}, {2, 0}, {3, 0}}));
  EXPECT_TRUE(run.objective->in_flight().empty());
  for (const Step& step : steps) {
    EXPECT_EQ(step.info.micro_batches, 3u);
    EXPECT_EQ(metric(step.row, "staleness"), 0);
  }

  // Two prompts of five in each round; the last one of an epoch is alone.
  EXPECT_EQ(run.samples->asked[1].sample_ids,
            (std::vector<uint64_t>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(run.samples->asked[2].sample_ids, (std::vector<uint64_t>{16, 17, 18, 19}));
  EXPECT_EQ(run.samples->asked[2].prompts.front(), files_.prompts()->get(4)->prompt_ids);
  EXPECT_EQ(steps[1].info.after.consumed, 4);
  EXPECT_EQ(steps[2].info.after.epoch, 1);
  EXPECT_EQ(steps[2].info.after.total, 5);
}

TEST_F(GrpoRoundsTest, RunsAheadByItsStalenessButNeverAcrossAStepThatSaves) {
  const Run run = start({.grpo = {.max_staleness = 2}, .save_steps = 4});
  const std::vector<Step> steps = draw(*run.objective, 1, 10);

  // Steps 4 and 8 save, the run ends with step 10: rounds 4, 8 and 10 begin behind these.
  EXPECT_EQ(order_of(run.samples->asked), (std::vector<Order>{{1, 0, 1},
                                                              {1, 1, 1},
                                                              {1, 2, 1},
                                                              {2, 3, 2},
                                                              {5, 4, 5},
                                                              {5, 5, 5},
                                                              {5, 6, 5},
                                                              {6, 7, 6},
                                                              {9, 8, 9},
                                                              {9, 9, 9}}));
  // Rounds that are on their way keep the weights that they were asked with.
  EXPECT_EQ(run.samples->pushed, (std::vector<Pushed>{{1, 0}, {2, 2}, {5, 0}, {6, 2}, {9, 0}}));

  const std::vector<double> staleness{0, 1, 2, 2, 0, 1, 2, 2, 0, 1};
  for (size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(metric(steps[i].row, "staleness"), staleness[i]) << "step " << i + 1;
}

TEST_F(GrpoRoundsTest, RoundsOfSeveralIterationsRunAheadAsAWhole) {
  // Two steps a round, the last of which is staler by one: 3 is room for one round, 4 not for two.
  for (const int64_t most : {3, 4}) {
    const Run run = start({.grpo = {.num_iterations = 2, .max_staleness = most}, .max_steps = 8});
    const std::vector<Step> steps = draw(*run.objective, 1, 8);
    EXPECT_EQ(order_of(run.samples->asked),
              (std::vector<Order>{{1, 0, 1}, {1, 1, 1}, {3, 2, 3}, {5, 3, 5}}));

    const std::vector<double> staleness{0, 1, 2, 3, 2, 3, 2, 3};
    for (size_t i = 0; i < steps.size(); ++i)
      EXPECT_EQ(metric(steps[i].row, "staleness"), staleness[i]) << "step " << i + 1;
  }
}

// Over all of them: rounds run ahead wherever the bound lets them, and no step is staler.
TEST_F(GrpoRoundsTest, NoStepIsStalerThanItMayBe) {
  constexpr int64_t kMost = 5, kSteps = 18;
  for (int64_t iterations = 1; iterations <= 3; ++iterations)
    for (int64_t every = 1; every <= 4; ++every)
      for (int64_t most = 0; most <= kMost; ++most) {
        const GrpoOptions grpo{.num_iterations = iterations, .max_staleness = most};
        const int64_t left = grpo.staleness_left(every);
        if (left < 0) continue;  // refused, or 0: nothing runs ahead
        const Run run = start({.grpo = grpo, .sync_every_steps = every, .max_steps = kSteps});
        double stalest = 0;
        for (const Step& step : draw(*run.objective, 1, kSteps))
          stalest = std::max(stalest, metric(step.row, "staleness"));

        const int64_t rounds = left / iterations;
        EXPECT_EQ(stalest, static_cast<double>(most - left + rounds * iterations))
            << iterations << " iterations, a push every " << every << " steps, at most " << most;
      }
}

// What is trained on is drawn with the weights that it would be drawn with if nobody evaluated.
TEST_F(GrpoRoundsTest, AnEvaluationMovesNoPush) {
  const Setting settings[] = {
      {.sync_every_steps = 1, .save_steps = 4},
      {.grpo = {.max_staleness = 3}, .sync_every_steps = 4},
      {.grpo = {.max_staleness = 3}, .sync_every_steps = 2, .save_steps = 6},
      {.grpo = {.num_iterations = 2}},
      {.grpo = {.num_iterations = 2, .max_staleness = 3}, .exit_interval = 4},
  };
  for (const Setting& setting : settings) {
    const Run alone = start(setting), evaluated = start(setting);
    draw(*alone.objective, 1, setting.max_steps);
    int64_t pushed = 0;
    for (int64_t step = 1; step <= setting.max_steps; ++step) {
      draw(*evaluated.objective, step, step);
      // As RolloutRun's evaluation.
      if (!evaluated.objective->pushes_after(step)) continue;
      const auto in_flight = evaluated.objective->in_flight();
      evaluated.samples->sync(trainer_.decoder(), static_cast<uint64_t>(step) + 1, in_flight);
      ++pushed;
    }

    EXPECT_EQ(evaluated.samples->asked, alone.samples->asked);
    // The evaluation after the last step is always of the weights of then.
    std::vector<Pushed> expected = alone.samples->pushed;
    expected.push_back({static_cast<uint64_t>(setting.max_steps) + 1, 0});
    EXPECT_EQ(evaluated.samples->pushed, expected);
    EXPECT_EQ(pushed, static_cast<int64_t>(alone.samples->pushed.size()))
        << "the last one besides, the first before any evaluation";
  }
}

TEST_F(GrpoRoundsTest, NoRoundIsDrawnAcrossAStepThatEndsTheRun) {
  const GrpoOptions ahead{.max_staleness = 2};
  const Run saving = start({.grpo = ahead, .save_steps = 4});
  const Run ending = start({.grpo = ahead, .exit_interval = 4});
  draw(*saving.objective, 1, 10);
  draw(*ending.objective, 1, 10);
  EXPECT_EQ(ending.samples->asked, saving.samples->asked);
  EXPECT_EQ(ending.samples->pushed, saving.samples->pushed);
}

TEST_F(GrpoRoundsTest, WeightsArePushedEverySoManySteps) {
  const Run run = start({.grpo = {.max_staleness = 1}, .sync_every_steps = 2});
  draw(*run.objective, 1, 5);
  EXPECT_EQ(order_of(run.samples->asked),
            (std::vector<Order>{{1, 0, 1}, {2, 1, 1}, {3, 2, 3}, {4, 3, 3}, {5, 4, 5}}));
}

TEST_F(GrpoRoundsTest, AfterASavedStepWeightsArePushedAlways) {
  // Without a checkpoint the push of step 4 would wait for step 5.
  const Run run = start({.grpo = {.max_staleness = 1}, .sync_every_steps = 2, .save_steps = 3});
  draw(*run.objective, 1, 5);
  EXPECT_EQ(order_of(run.samples->asked),
            (std::vector<Order>{{1, 0, 1}, {2, 1, 1}, {3, 2, 3}, {4, 3, 4}, {5, 4, 4}}));
}

TEST_F(GrpoRoundsTest, AResumedRunAsksForTheSame) {
  const GrpoOptions ahead{.max_staleness = 2};
  const Run whole = start({.grpo = ahead, .save_steps = 4});
  const std::vector<Step> steps = draw(*whole.objective, 1, 8);

  const Run resumed =
      start({.grpo = ahead, .save_steps = 4, .start_step = 4, .start_cursor = steps[3].info.after});
  const std::vector<Step> again = draw(*resumed.objective, 5, 8);
  const std::vector<Asked> expected(whole.samples->asked.begin() + 4, whole.samples->asked.end());
  EXPECT_EQ(resumed.samples->asked, expected);
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].info.after.total, steps[i + 4].info.after.total);
    EXPECT_EQ(timeless(again[i].row), timeless(steps[i + 4].row));
  }
}

TEST_F(GrpoRoundsTest, AResumeInTheMiddleOfARoundDrawsItAgain) {
  const GrpoOptions twice{.num_iterations = 2};
  const Run whole = start({.grpo = twice});
  const std::vector<Step> steps = draw(*whole.objective, 1, 4);
  EXPECT_EQ(steps[1].info.after.total, 2) << "behind round 0";
  EXPECT_EQ(steps[2].info.after.total, 2) << "round 1 is not done";
  EXPECT_EQ(steps[3].info.after.total, 4);

  const Run resumed = start({.grpo = twice, .start_step = 3, .start_cursor = steps[2].info.after});
  draw(*resumed.objective, 4, 4);
  ASSERT_EQ(resumed.samples->asked.size(), 1u);
  EXPECT_EQ(resumed.samples->asked[0].number, whole.samples->asked[1].number);
  EXPECT_EQ(resumed.samples->asked[0].prompts, whole.samples->asked[1].prompts);
  EXPECT_EQ(resumed.samples->asked[0].sample_ids, whole.samples->asked[1].sample_ids);
}

}  // namespace
}  // namespace retort::recipes
