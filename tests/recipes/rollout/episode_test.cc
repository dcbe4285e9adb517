// What a student makes of an episode: its spans, its record, and the metrics of all ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/generation/completion_spans.h"
#include "recipes/rollout/episode_metrics.h"
#include "tests/recipes/loop/rank_threads.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using models::Completion, models::SpanSource;

// Two tokens of the prompt, three of the model, one of the environment, one of the model.
Completion episode() {
  return {.token_ids = {1, 2, 3, 4, 5, 6, 7},
          .spans = {{SpanSource::kPrompt, 0, 2},
                    {SpanSource::kModel, 9, 3},
                    {SpanSource::kEnvironment, 0, 1},
                    {SpanSource::kModel, 9, 1}},
          .episode = "{}",
          .logps = {0, 0, -1, -2, -3, 0, -4},
          .sampling_logps = {}};
}

TEST(CompletionSpans, SayWhoseEachTokenIs) {
  Completion completion = episode();
  EXPECT_EQ(models::num_model_tokens(completion), 4);
  EXPECT_EQ(models::take_prompt(completion), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(completion.token_ids, (std::vector<int32_t>{3, 4, 5, 6, 7}));
  EXPECT_EQ(completion.logps, (std::vector<float>{-1, -2, -3, 0, -4}));
  EXPECT_TRUE(completion.sampling_logps.empty()) << "the engine does not say them";
  EXPECT_EQ(models::model_tokens(completion), (std::vector<uint8_t>{1, 1, 1, 0, 1}));
  EXPECT_EQ(models::last_turn(completion).size(), 1u);
  EXPECT_EQ(models::last_turn(completion).front(), 7);
  EXPECT_TRUE(models::take_prompt(completion).empty()) << "it was taken";
}

TEST(CompletionSpans, AnEpisodeMayEndWithItsEnvironment) {
  Completion completion = episode();
  completion.token_ids.pop_back();
  completion.spans.pop_back();
  EXPECT_EQ(models::last_turn(completion).size(), 3u);
  EXPECT_EQ(models::last_turn(completion).front(), 3);
}

TEST(CompletionSpans, WithoutAnyAllTokensAreTheModels) {
  Completion completion{.token_ids = {3, 4}};
  EXPECT_EQ(models::num_model_tokens(completion), 2);
  EXPECT_EQ(models::model_tokens(completion), (std::vector<uint8_t>{1, 1}));
  EXPECT_EQ(models::last_turn(completion).size(), 2u);
  EXPECT_TRUE(models::take_prompt(completion).empty());
}

// The student's own tokens are targets, wherever they stand; without spans all of them are.
TEST(TrainingRow, HasTheModelsTokensAsTargets) {
  const data::PromptSample prompt{.prompt_ids = {8, 9}, .origin = "a:1", .fields = {{"n", "1"}}};
  const RolloutSample played = sample_of(episode());
  const data::Sample row = training_row(prompt, played);
  EXPECT_EQ(row.input_ids, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7})) << "its own prompt";
  EXPECT_EQ(row.is_target, (std::vector<uint8_t>{0, 0, 1, 1, 1, 0, 1}));
  EXPECT_EQ(row.num_targets(), models::num_model_tokens(played.completion));
  EXPECT_EQ(row.origin, "a:1");
  EXPECT_EQ(row.fields, prompt.fields);

  const data::Sample said = training_row(prompt, sample_of({.token_ids = {3, 4}}));
  EXPECT_EQ(said.input_ids, (std::vector<int32_t>{8, 9, 3, 4}));
  EXPECT_EQ(said.is_target, (std::vector<uint8_t>{0, 0, 1, 1}));
}

TEST(EpisodeRecord, IsReadWhole) {
  const EpisodeRecord record = read_episode(
      R"({"reward": 0.5, "metrics": {"solved": 1, "steps": 2.5}, "messages": [{"role": "user"}],)"
      R"( "turns": 3, "calls": 2, "failed_calls": 1, "malformed": 1, "unscorable": null})");
  EXPECT_EQ(record.outcome.reward, 0.5);
  EXPECT_EQ(record.metrics,
            (std::vector<std::pair<std::string, double>>{{"solved", 1}, {"steps", 2.5}}));
  EXPECT_EQ(record.outcome.messages, R"([{"role":"user"}])");
  EXPECT_EQ(record.turns, 3);
  EXPECT_EQ(record.calls, 2);
  EXPECT_EQ(record.failed_calls, 1);
  EXPECT_EQ(record.malformed, 1);
  EXPECT_EQ(record.outcome.unscorable, "");
  EXPECT_FALSE(record.outcome.is_lost());
}

TEST(EpisodeRecord, WhatCannotBeOneIsRefused) {
  const std::string rest = R"("turns": 1, "calls": 0, "failed_calls": 0, "malformed": 0})";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[1]", "expected a JSON object"},
      {"{", "expected a JSON object"},
      {"{\n}", "not one line"},
      {R"({"reward": "much", "messages": [], )" + rest, "reward is \"much\""},
      {R"({"metrics": {"solved": true}, "messages": [], )" + rest, "metrics.solved is true"},
      {R"({"metrics": 3, "messages": [], )" + rest, "metrics is number"},
      {R"({"messages": {}, )" + rest, "messages is no array"},
      {R"({"messages": [], "turns": -1, "calls": 0})", "turns is missing"},
      {R"({"messages": [], "turns": 1, "calls": 0})", "failed_calls is missing"},
      {R"({"messages": [], "unscorable": "", )" + rest, "does not say why"}};
  for (const auto& [text, part] : cases) {
    const std::string message = test::message_of([&] { read_episode(text); }, ErrorCode::kCorrupt);
    EXPECT_NE(message.find(part), std::string::npos) << text << ": " << message;
  }
}

RolloutSample sample(std::vector<std::pair<std::string, double>> metrics, int64_t calls,
                     std::string unscorable = "") {
  RolloutSample sample;
  sample.completion = episode();
  sample.prompt_ids = models::take_prompt(sample.completion);
  sample.episode = {.outcome = {.messages = "[]", .unscorable = std::move(unscorable)},
                    .metrics = std::move(metrics),
                    .turns = 2,
                    .calls = calls,
                    .failed_calls = 1};
  return sample;
}

// Each rank's environment may report what the other's does not.
TEST(EpisodeMetrics, AreMeansOverTheEpisodesOfAllRanks) {
  const auto errors = test::run_rank_threads(2, [](parallel::World& world) {
    RolloutGroup group;
    if (world.rank() == 0) {
      group.samples.push_back(sample({{"solved", 1}}, 4));
      group.samples.push_back(sample({{"solved", 7}}, 9, "the environment is gone"));
    } else {
      group.samples.push_back(sample({{"solved", 0}, {"moves", 5}}, 2));
    }
    MetricsRow row;
    add_episode_metrics({.groups = {group}}, world.dp(), row);

    const std::vector<std::pair<std::string, double>> expected{
        {"tools/call_frequency", 3},
        {"tools/failure_frequency", 2.0 / 6},
        {"episodes/mean_turns", 2},
        {"episodes/mean_environment_tokens", 1},
        {"episodes/malformed_ratio", 0},
        {"episodes/num_lost", 1},
        {"episodes/frac_groups_with_other_prompts", 0},
        {"environment/moves", 5},
        {"environment/solved", 0.5}};
    ASSERT_EQ(row.values.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(row.values[i].first, expected[i].first);
      EXPECT_EQ(
          std::visit([](auto value) { return static_cast<double>(value); }, row.values[i].second),
          expected[i].second)
          << expected[i].first;
    }
  });
  for (const std::optional<Error>& error : errors)
    EXPECT_FALSE(error) << error->what();
}

TEST(EpisodeMetrics, TakeNumbersWhoseSumIsTooLarge) {
  const auto errors = test::run_rank_threads(2, [](parallel::World& world) {
    RolloutGroup group;
    for (int i = 0; i < 2; ++i)
      group.samples.push_back(sample({{"best", 1.7e308}}, 1));
    MetricsRow row;
    add_episode_metrics({.groups = {group}}, world.dp(), row);
    const auto said = std::ranges::find(row.values, std::string("environment/best"),
                                        [](const auto& one) { return one.first; });
    ASSERT_NE(said, row.values.end());
    EXPECT_TRUE(std::isfinite(std::get<double>(said->second)));
  });
  for (const std::optional<Error>& error : errors)
    EXPECT_FALSE(error) << error->what();
}

// An environment that does not look at the seed gives each episode of a group a task of its own.
// One that was lost has begun with nothing, and a group of one has nobody to differ from.
TEST(EpisodeMetrics, CountGroupsThatBeginWithOtherPrompts) {
  const auto errors = test::run_rank_threads(2, [](parallel::World& world) {
    const RolloutSample good = sample({}, 1);
    RolloutSample other = good, lost = sample({}, 0, "the environment is gone");
    other.prompt_ids.push_back(9);
    lost.prompt_ids.clear();
    Rollout rollout;
    if (world.rank() == 0)
      for (const auto& samples : {std::vector{good, good, lost}, std::vector{lost, good, other}})
        rollout.groups.push_back({.samples = samples});
    else
      for (const auto& samples :
           {std::vector{good, good}, std::vector{other, good, good}, std::vector{lost, other}})
        rollout.groups.push_back({.samples = samples});

    MetricsRow row;
    EXPECT_EQ(add_episode_metrics(rollout, world.dp(), row), 2.0 / 4);
    const auto said =
        std::ranges::find(row.values, kOtherPrompts, [](const auto& one) { return one.first; });
    ASSERT_NE(said, row.values.end());
    EXPECT_EQ(std::get<double>(said->second), 2.0 / 4);
  });
  for (const std::optional<Error>& error : errors)
    EXPECT_FALSE(error) << error->what();
}

}  // namespace
}  // namespace retort::recipes
