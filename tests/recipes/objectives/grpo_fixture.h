// GRPO in one process: an objective over prompts on disk, a generator that is none, and rewards by
// rule.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "parallel/world.h"
#include "recipes/grpo/objective.h"
#include "tests/recipes/rollout/fake_sample_source.h"
#include "tests/recipes/rollout/prompt_files.h"
#include "tests/roles/nano_model.h"

namespace retort::recipes {

inline constexpr int64_t kGenerations = 4;
inline constexpr int64_t kPromptsPerRound = 2;

class GrpoTest : public ::testing::Test {
 protected:
  // `more_words`: of the prompts.
  explicit GrpoTest(at::Device device = at::kCPU, int64_t more_words = 0)
      : files_(5, more_words), trainer_{model(7, device), world_, {}} {}

  // A student whose weights follow from `seed`.
  static models::Decoder model(uint64_t seed, at::Device device = at::kCPU) {
    return models::Decoder::random(roles::nano_model(models::Family::kQwen3, true, 2), seed,
                                   at::kFloat, {}, device);
  }

  struct Setting {
    GrpoOptions grpo;
    int64_t sync_every_steps = 1;
    int64_t save_steps = 0;
    int64_t exit_interval = 0;
    int64_t max_steps = 10;
    int64_t start_step = 0;
    data::Cursor start_cursor;
    std::vector<rewards::RewardOptions> rewards = test::length_rewards();
    bool draw_ahead = false;
    bool episodes = false;
    std::function<std::unique_ptr<roles::FrozenAnswers>()> reference;  // with grpo.beta
    test::FakeSampleSource::Answer answer = [](const data::PromptSample&, uint64_t sample_id,
                                               uint64_t) {
      return test::numbered_answer(sample_id);
    };
  };
  struct Run {
    std::shared_ptr<test::FakeSampleSource> samples;
    std::unique_ptr<GrpoObjective> objective;
  };
  // Micro-batches of three: they begin and end inside the groups of four.
  Run start(const Setting& setting) {
    Run run;
    std::vector<double> weights;
    for (const rewards::RewardOptions& reward : setting.rewards)
      weights.push_back(reward.weight);
    run.samples = std::make_shared<test::FakeSampleSource>(files_.tokenizer(), setting.answer);
    run.samples->draw_ahead = setting.draw_ahead;
    run.objective = std::make_unique<GrpoObjective>(
        GrpoObjective::Parts{
            .world = world_,
            .trainer = trainer_,
            .prompts = files_.prompts(),
            .stream = files_.order(setting.start_cursor),
            .samples = run.samples,
            .scorer = std::make_shared<RolloutScorer>(
                std::make_shared<rewards::RewardSet>(setting.rewards), files_.tokenizer()),
            .reference = setting.reference
                             ? std::make_unique<Reference>(setting.reference(), &world_.tp())
                             : nullptr},
        GrpoObjective::Options{.grpo = setting.grpo,
                               .reward_weights = weights,
                               .num_generations = kGenerations,
                               .max_new_tokens = test::kLongestAnswer,
                               .episodes = setting.episodes,
                               .temperature = kTemperature,
                               .sync_every_steps = setting.sync_every_steps,
                               .prompts_per_round = kPromptsPerRound,
                               .micro_batches = 3,
                               .rows_per_micro_batch = 3,
                               .save_steps = setting.save_steps,
                               .exit_interval = setting.exit_interval,
                               .max_steps = setting.max_steps,
                               .start_step = setting.start_step,
                               .start_cursor = setting.start_cursor,
                               .samples_folder = {}});
    return run;
  }

  static double metric(const MetricsRow& row, const std::string& name) {
    for (const auto& [key, value] : row.values)
      if (key == name)
        return std::visit([](auto number) { return static_cast<double>(number); }, value);
    ADD_FAILURE() << "no metric " << name;
    return 0;
  }

  static constexpr double kTemperature = 0.8;

  parallel::World world_{{.role = "student", .layout = {}}};
  test::PromptFiles files_;
  roles::Trainer trainer_;
};

}  // namespace retort::recipes
