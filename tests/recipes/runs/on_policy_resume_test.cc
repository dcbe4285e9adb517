// Runs with a generator or a reference, killed at random moments and resumed: the uninterrupted
// run's numbers bit for bit. RETORT_TRIALS sets how often (default 1 of each, with two kills).
#include <gtest/gtest.h>

#include "tests/recipes/run_support/killed_run.h"

namespace retort::test {
namespace {

OnPolicyRecipe grpo(const TemporaryFolder& folder, int64_t max_staleness) {
  OnPolicyRecipe recipe{.data = write_prompts(folder),
                        .save_steps = 2,
                        .block = {{"max_staleness", std::to_string(max_staleness)}}};
  recipe.generation["save_samples"] = "true";
  return recipe;
}

OnPolicyRecipe plain_grpo(const TemporaryFolder& folder) { return grpo(folder, 0); }

OnPolicyRecipe stale_grpo(const TemporaryFolder& folder) {
  OnPolicyRecipe recipe = grpo(folder, 3);
  recipe.save_steps = 6;  // a push is not due where a checkpoint lies
  recipe.extra = "weight_sync: {every_steps: 2}\n";
  return recipe;
}

// Rollouts in two steps, of which some prompts are drawn anew.
OnPolicyRecipe grpo_as_used(const TemporaryFolder& folder) {
  OnPolicyRecipe recipe = grpo(folder, 3);
  recipe.rewards = "[{type: regex, pattern: 'w[1-3]'}]";
  recipe.block.insert({{"num_mini_batches", "2"},
                       {"max_resamples", "1"},
                       {"mask_truncated_completions", "true"},
                       {"overlong_penalty_tokens", "1"}});
  recipe.save_steps = 8;  // rounds run ahead in between
  return recipe;
}

// The model without its adapter is the reference; pushed are merged weights, or the adapter alone.
OnPolicyRecipe grpo_of_adapter(const TemporaryFolder& folder) {
  OnPolicyRecipe recipe = grpo(folder, 0);
  recipe.block.insert({{"beta", "0.05"}, {"reference", "student"}});
  recipe.student_world = ", tp: 2";
  return recipe;
}

OnPolicyRecipe rejection_sampling(const TemporaryFolder& folder) {
  OnPolicyRecipe recipe{.recipe = "rejection_sampling",
                        .data = write_prompts(folder),
                        .rows = 4,
                        .save_steps = 2,
                        .block = {{"rounds", "4"}, {"prompts_per_round", "7"}, {"top_n", "2"}},
                        .data_extra = "  packing: false\n"};
  recipe.generation = {{"num_generations", "8"}, {"max_new_tokens", "40"}};
  return recipe;
}

// Batches are drawn two steps ahead, and the teacher is asked one step ahead, but not across a
// checkpoint.
OnPolicyRecipe stale_distill(const TemporaryFolder& folder) {
  return {.recipe = "on_policy_distill",
          .data = write_prompts(folder),
          .teacher = "teacher",
          .rows = 4,
          .save_steps = 6,
          .block = {{"max_staleness", "2"},
                    {"payload", "target_logps"},
                    {"loss_type", "reverse_kl"},
                    {"use_policy_gradient", "true"},
                    {"sampling_correction", "sequence_mask"},
                    {"importance_sampling_cap", "2"}},
          .generation = {{"max_new_tokens", "10"}, {"save_samples", "true"}},
          .data_extra = "  packing: false\n"};
}

OnPolicyRecipe dpo(const TemporaryFolder& folder) {
  return {.recipe = "dpo",
          .data = write_pairs(folder),
          .reference = "teacher",
          .rows = 4,
          .save_steps = 2,
          .block = {{"prefetch", "3"}}};
}

OnPolicyRecipe dpo_of_adapter(const TemporaryFolder& folder) {
  OnPolicyRecipe recipe = dpo(folder);
  recipe.reference = "";
  recipe.block = {{"reference", "student"}};
  recipe.student_world = ", pp: 2";
  return recipe;
}

OnPolicyRecipe kto(const TemporaryFolder&) {
  return {.recipe = "kto",
          .data = goldens() / "labels.jsonl",
          .reference = "teacher",
          .rows = 6,
          .save_steps = 2,
          .block = {{"prefetch", "3"}}};
}

KilledRun killed(const std::string& name, int64_t steps,
                 OnPolicyRecipe (*recipe)(const TemporaryFolder&),
                 const std::vector<std::string>& settings = {}, int64_t rank = 0) {
  const LaunchIn launch = [=](const TemporaryFolder& data, const fs::path& folder) {
    OnPolicyRecipe of_folder = recipe(data);
    of_folder.steps = steps;
    std::vector<std::string> arguments{"launch", write_on_policy(folder, of_folder).string()};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return arguments;
  };
  return {.name = name, .steps = steps, .launch = launch, .rank = rank};
}

const std::vector<std::string> kAdapter{"roles.student.lora={r: 4, lora_alpha: 16}",
                                        "train.learning_rate=0.01"};

// The adapter alone goes to a generator, which starts again from the model.
const std::vector<std::string> kPushed{"roles.student.lora={r: 4, lora_alpha: 16, push: adapter}",
                                       "train.learning_rate=0.01"};

class Killed : public testing::TestWithParam<KilledRun> {};

TEST_P(Killed, ResumesBitForBit) { expect_same_after_kills(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Recipes, Killed,
    testing::Values(killed("grpo", 20, plain_grpo), killed("grpo_stale", 20, stale_grpo),
                    killed("grpo_as_used", 20, grpo_as_used),
                    killed("grpo_adapter", 20, grpo_of_adapter, kAdapter, 1),
                    killed("grpo_pushed_adapter", 20, grpo_of_adapter, kPushed, 0),
                    killed("rejection_sampling", 20, rejection_sampling),
                    killed("distill_stale", 20, stale_distill), killed("dpo", 24, dpo),
                    killed("dpo_adapter", 24, dpo_of_adapter, kAdapter, 1), killed("kto", 24, kto)),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::test
