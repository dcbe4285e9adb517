// When samples are scored: as soon as they are there, whoever waits for what; and that the scores
// stand where the samples do.
#include "recipes/rollout/rollout_scorer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "recipes/rollout/scoring_queue.h"
#include "tests/recipes/objectives/fake_frozen_role.h"
#include "tests/recipes/objectives/grpo_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::recipes {
namespace {

class RolloutScorerTest : public GrpoTest {
 protected:
  static constexpr int64_t kSamplesPerRound = kGenerations * kPromptsPerRound;

  // A program that scores each completion with the number of its line, and keeps the lines.
  Setting scored_by_a_program() const {
    const std::string script =
        "n=0; while read -r line; do printf '%s\\n' \"$line\" >> \"$0\"; "
        "printf '{\"id\": %d, \"score\": %d}\\n' $n $n; n=$((n+1)); done";
    Setting setting;
    setting.rewards = {{.type = rewards::RewardType::kCommand,
                        .argv = {"sh", "-c", script, (folder_ / "lines").string()}}};
    return setting;
  }
  // Completions that the program was asked for so far.
  int64_t asked() const {
    std::ifstream file(folder_ / "lines");
    int64_t lines = 0;
    for (std::string line; std::getline(file, line);)
      ++lines;
    return lines;
  }

  test::TemporaryFolder folder_;
};

TEST_F(RolloutScorerTest, TheFirstSampleIsScoredBeforeTheLastIsDrawn) {
  const Run run = start(scored_by_a_program());
  bool seen = false;
  run.samples->before_drawing = [&](size_t place) {
    if (place + 1 == kSamplesPerRound) seen = test::wait_until([&] { return asked() > 0; });
  };
  run.objective->next_step(1);
  EXPECT_TRUE(seen);
  EXPECT_EQ(asked(), kSamplesPerRound);
}

TEST_F(RolloutScorerTest, TheNextRoundIsScoredWhileThisOneIsTrainedOn) {
  Setting ahead = scored_by_a_program();
  ahead.grpo.max_staleness = 1;
  ahead.draw_ahead = true;
  const Run run = start(ahead);
  run.objective->next_step(1);
  EXPECT_TRUE(test::wait_until([&] { return asked() == 2 * kSamplesPerRound; }))
      << asked() << " completions were scored before the next step began";
}

// Each micro-batch once, as the loss will want it.
TEST_F(RolloutScorerTest, TheReferenceIsAskedBeforeTheLastSampleIsDrawn) {
  Setting setting = scored_by_a_program();
  setting.grpo.beta = 0.1;
  test::FakeFrozenRole* role = nullptr;
  setting.reference = [&] {
    auto made = std::make_unique<test::FakeFrozenRole>(
        model(9), roles::PayloadSpec{.kind = roles::PayloadKind::kTargetLogProbs});
    role = made.get();
    return made;
  };
  const Run run = start(setting);
  bool seen = false;
  run.samples->before_drawing = [&](size_t place) {
    if (place + 1 < kSamplesPerRound) return;
    seen = test::wait_until([&] {
      run.samples->meanwhile();
      return !role->ids.empty();
    });
  };
  run.objective->next_step(1);
  EXPECT_TRUE(seen);
  EXPECT_EQ(role->ids.size(), 3u);
}

TEST_F(RolloutScorerTest, AFailureIsToldByEveryRoundFromThenOn) {
  Setting failing;
  failing.rewards = {{.type = rewards::RewardType::kCommand, .name = "judge", .argv = {"false"}}};
  const Run run = start(failing);
  for (const int64_t step : {1, 2}) {
    const Error error = test::error_of([&] { run.objective->next_step(step); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("judge"), std::string::npos) << error.what();
  }
}

class ScoringQueueTest : public ::testing::Test {
 protected:
  using Places = std::vector<size_t>;

  // Two prompts with two completions each.
  std::shared_ptr<ScoringQueue::Attempt> add(uint64_t number) {
    const std::string name = "request " + std::to_string(number);
    queue.add(number, {{.prompt = name + ", first"}, {.prompt = name + ", second"}}, 2);
    return queue.open(number);
  }
  void put(const std::shared_ptr<ScoringQueue::Attempt>& attempt, const Places& places) {
    for (const size_t place : places)
      queue.put(attempt, {.place = place,
                          .prompt_ids = {},
                          .completion = {.token_ids = {static_cast<int32_t>(place)}}});
  }
  // Scores the next batch, each sample with `base` and its place; returns the places.
  Places score_next(double base) {
    const auto batch = queue.next();
    if (!batch) return {};
    Places places;
    std::vector<rewards::Scored> scores;
    for (const ScoringQueue::Arrived& sample : batch->samples) {
      places.push_back(sample.place);
      scores.push_back({.total = base + static_cast<double>(sample.place)});
    }
    prompts.clear();
    for (const rewards::RewardInput& input : batch->inputs)
      prompts.push_back(input.prompt);
    queue.finish(*batch, std::move(scores), 0.5);
    return places;
  }
  std::vector<double> totals(uint64_t number) {
    std::vector<double> totals;
    for (const rewards::Scored& one : queue.wait(number).samples)
      totals.push_back(one.total.value());
    return totals;
  }

  ScoringQueue queue;
  std::vector<std::string> prompts;  // of the last batch
};

TEST_F(ScoringQueueTest, ScoresStandInTheirPlacesWheneverTheyCame) {
  const auto attempt = add(7);
  put(attempt, {3, 0});
  EXPECT_EQ(score_next(10), (Places{3, 0}));
  EXPECT_EQ(prompts, (std::vector<std::string>{"request 7, second", "request 7, first"}));
  put(attempt, {2, 1});
  EXPECT_EQ(score_next(20), (Places{2, 1}));
  EXPECT_EQ(totals(7), (std::vector<double>{10, 21, 22, 13}));
}

// They are read where samples are scored, and by nobody again.
TEST_F(ScoringQueueTest, RecordsOfEpisodesStandInTheirPlacesToo) {
  const auto attempt = add(7);
  put(attempt, {3, 1});
  auto batch = queue.next();
  ASSERT_TRUE(batch);
  batch->samples.at(0).episode = EpisodeRecord{.turns = 5};
  queue.finish(*std::move(batch), std::vector<rewards::Scored>(2), 0.5);
  put(attempt, {0, 2});
  score_next(0);

  const ScoringQueue::Scores scores = queue.wait(7);
  ASSERT_EQ(scores.episodes.size(), 4u);
  for (const size_t place : {0, 1, 2})
    EXPECT_FALSE(scores.episodes[place]) << place;
  ASSERT_TRUE(scores.episodes[3]);
  EXPECT_EQ(scores.episodes[3]->turns, 5);
}

TEST_F(ScoringQueueTest, TheRequestThatIsWaitedForGoesFirstThenTheOldest) {
  const auto first = add(1), second = add(2), third = add(3);
  put(third, {0});
  put(second, {1});
  put(first, {2});
  queue.prefer(3);
  EXPECT_EQ(score_next(0), Places{0});
  EXPECT_EQ(score_next(0), Places{2});
  EXPECT_EQ(score_next(0), Places{1});
}

TEST_F(ScoringQueueTest, WhatWasDrawnBeforeARequestIsSentAgainDoesNotCount) {
  const auto old = add(1);
  put(old, {0, 1});
  const auto batch = queue.next();
  ASSERT_TRUE(batch);
  put(old, {2});
  const auto fresh = queue.open(1);
  queue.finish(*batch, {{.total = -1.0}, {.total = -1.0}}, 0.5);
  put(old, {3});
  put(fresh, {0, 1, 2, 3});
  EXPECT_EQ(score_next(5), (Places{0, 1, 2, 3}));
  EXPECT_EQ(totals(1), (std::vector<double>{5, 6, 7, 8}));
}

TEST_F(ScoringQueueTest, AnErrorEndsAllButWhatIsScored) {
  const auto done = add(1), open = add(2);
  put(done, {0, 1, 2, 3});
  score_next(0);
  put(open, {0, 1, 2, 3});
  queue.fail(std::make_exception_ptr(Error(ErrorCode::kTimeout, "the judge is slow")));
  EXPECT_FALSE(queue.next());
  EXPECT_EQ(totals(1), (std::vector<double>{0, 1, 2, 3}));
  EXPECT_EQ(test::code_of([&] { queue.wait(2); }), ErrorCode::kTimeout);
}

}  // namespace
}  // namespace retort::recipes
