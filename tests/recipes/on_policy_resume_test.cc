// Runs with a generator or a reference, killed at random moments and resumed: the uninterrupted
// run's numbers bit for bit. RETORT_TRIALS sets how often (default 1 of each, with two kills).
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "base/file.h"
#include "tests/recipes/on_policy_support.h"

namespace retort::test {
namespace {

int trials() {
  const char* text = std::getenv("RETORT_TRIALS");
  return text ? std::atoi(text) : 1;
}

struct Case {
  std::string name;
  int64_t steps;
  OnPolicyRecipe (*recipe)(const TemporaryFolder&);
};

OnPolicyRecipe grpo(const TemporaryFolder& folder, int64_t max_staleness) {
  OnPolicyRecipe recipe{.data = write_prompts(folder),
                        .save_steps = 2,
                        .block = {{"max_staleness", std::to_string(max_staleness)}}};
  recipe.generation["save_samples"] = "true";
  return recipe;
}

std::vector<Case> cases() {
  return {{"grpo", 20, [](const TemporaryFolder& folder) { return grpo(folder, 0); }},
          {"grpo_stale", 20,
           [](const TemporaryFolder& folder) {
             OnPolicyRecipe recipe = grpo(folder, 3);
             recipe.save_steps = 6;  // a push is not due where a checkpoint lies
             recipe.extra = "weight_sync: {every_steps: 2}\n";
             return recipe;
           }},
          // Rollouts in two steps, of which some prompts are drawn anew.
          {"grpo_as_used", 20,
           [](const TemporaryFolder& folder) {
             OnPolicyRecipe recipe = grpo(folder, 3);
             recipe.rewards = "[{type: regex, pattern: 'w[1-3]'}]";
             recipe.block.insert({{"num_mini_batches", "2"},
                                  {"max_resamples", "1"},
                                  {"mask_truncated_completions", "true"},
                                  {"overlong_penalty_tokens", "1"}});
             recipe.save_steps = 8;  // rounds run ahead in between
             return recipe;
           }},
          {"rejection_sampling", 20,
           [](const TemporaryFolder& folder) {
             OnPolicyRecipe recipe{
                 .recipe = "rejection_sampling",
                 .data = write_prompts(folder),
                 .rows = 4,
                 .save_steps = 2,
                 .block = {{"rounds", "4"}, {"prompts_per_round", "7"}, {"top_n", "2"}},
                 .data_extra = "  packing: false\n"};
             recipe.generation = {{"num_generations", "8"}, {"max_new_tokens", "40"}};
             return recipe;
           }},
          {"dpo", 24,
           [](const TemporaryFolder& folder) {
             return OnPolicyRecipe{.recipe = "dpo",
                                   .data = write_pairs(folder),
                                   .reference = "teacher",
                                   .rows = 4,
                                   .save_steps = 2,
                                   .block = {{"prefetch", "3"}}};
           }},
          {"kto", 24, [](const TemporaryFolder&) {
             return OnPolicyRecipe{.recipe = "kto",
                                   .data = goldens() / "labels.jsonl",
                                   .reference = "teacher",
                                   .rows = 6,
                                   .save_steps = 2,
                                   .block = {{"prefetch", "3"}}};
           }}};
}

class Killed : public testing::TestWithParam<Case> {};

TEST_P(Killed, ResumesBitForBit) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe = GetParam().recipe(folder);
  recipe.steps = GetParam().steps;
  const auto whole = retort({"launch", write_on_policy(folder / "whole", recipe).string()},
                            std::chrono::seconds(120));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  const fs::path expected = folder / "whole/run";
  std::mt19937_64 random(std::hash<std::string>()(GetParam().name));
  const auto below = [&](int64_t end) {
    return std::uniform_int_distribution<int64_t>(0, end - 1)(random);
  };

  // Two kills in each trial, of the launcher or of the student, then a run to the end.
  for (int trial = 0; trial < trials(); ++trial) {
    const fs::path place = folder / ("trial" + std::to_string(trial)), run = place / "run";
    const std::string path = write_on_policy(place, recipe).string();
    std::string story;
    for (int kills = 0;; ++kills) {
      std::vector<std::string> argv{retort_binary(), "launch", path};
      if (fs::exists(run / "recipe.resolved.yaml")) argv.push_back("--resume");
      Command command(argv);
      const bool whole_launcher = (trial + kills) % 2 == 1;
      if (kills < 2) {
        // After so many steps, and a little later: inside a step, a checkpoint, a generation, or at
        // the end.
        const int64_t rows = below(recipe.steps), delay = below(60);
        story += " after " + std::to_string(rows) + " rows and " + std::to_string(delay) + " ms";
        wait_until(
            [&] { return static_cast<int64_t>(metrics_rows(run)) >= rows || !command.running(); });
        std::this_thread::sleep_for(std::chrono::milliseconds(delay));
        if (whole_launcher)
          command.signal(SIGKILL);
        else if (const int pid = command.running() ? role_process(place, "student") : -1; pid > 0)
          ::kill(pid, SIGKILL);
      }

      const auto result = command.wait();
      ASSERT_NE(result.exit_code, 124) << "the run hung" << story << "\n" << result.output;
      ASSERT_TRUE(all_gone(run.string())) << "a process was left behind" << story;
      if (result.exit_code == 0) break;
      ASSERT_LT(kills, 2) << story << "\n" << result.output;
      if (whole_launcher) {
        ASSERT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
      } else {
        ASSERT_EQ(result.exit_code, 1) << result.output;
        ASSERT_NE(result.output.find("student/0 failed first"), std::string::npos) << result.output;
      }
    }

    EXPECT_EQ(timeless_metrics(run), timeless_metrics(expected)) << story;
    EXPECT_TRUE(read_file(run / "final/model.safetensors") ==
                read_file(expected / "final/model.safetensors"))
        << story;
    if (fs::exists(expected / "samples")) {
      EXPECT_EQ(read_samples(run), read_samples(expected)) << story;
    }
    if (fs::exists(expected / "kept")) {
      for (int round = 0; round < 4; ++round) {
        const std::string name = "kept/round-" + std::to_string(round) + ".jsonl";
        EXPECT_EQ(read_lines(run / name), read_lines(expected / name)) << story;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Recipes, Killed, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::test
