// Runs that train an adapter, that read a cache of their teacher's payloads, or whose teacher draws
// or is told ids by the student: split over two ranks, killed at random moments and resumed, they
// give the uninterrupted run's numbers bit for bit.
#include <gtest/gtest.h>

#include "tests/recipes/run_support/cache_support.h"
#include "tests/recipes/run_support/killed_run.h"

namespace retort::test {
namespace {

GoldenRecipe split_by_rows(GoldenRecipe recipe, const std::string& world = {}) {
  recipe.dp = 2;
  recipe.rows = 2;
  recipe.student_world = world;
  return recipe;
}

GoldenRecipe distill(const std::map<std::string, std::string>& settings) {
  return {.teacher = "teacher", .distill = settings};
}

GoldenRecipe sampled() {
  return distill({{"payload", "sampled"}, {"num_samples", "6"}, {"replacement", "false"}});
}

GoldenRecipe named(const std::string& support, const std::string& student_world,
                   const std::string& teacher_world) {
  GoldenRecipe recipe = distill({{"payload", "topk"},
                                 {"support", support},
                                 {"loss_top_k", "5"},
                                 {"loss_type", "reverse_kl"}});
  recipe.student_world = student_world;
  recipe.teacher_world = teacher_world;
  return recipe;
}

// Saves often enough that a kill falls between two checkpoints, or into one.
KilledRun killed(const std::string& name, const GoldenRecipe& recipe, Overrides settings = {}) {
  constexpr int64_t kSteps = 60;
  settings.push_back("train.save_steps=7");
  const LaunchIn launch = [=](const TemporaryFolder&, const fs::path& folder) {
    GoldenRecipe longer = recipe;
    longer.steps = kSteps;
    Overrides arguments{"launch", write_recipe(folder, longer).string()};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return arguments;
  };
  return {.name = name, .steps = kSteps, .launch = launch, .rank = 1};
}

KilledRun killed_adapter(const std::string& name, const GoldenRecipe& recipe) {
  return killed(name, recipe,
                {"roles.student.lora={r: 4, lora_alpha: 8}", "train.learning_rate=0.01"});
}

// All runs read one cache, which a single process has written.
KilledRun killed_reader() {
  const GoldenRecipe recipe = distill({{"payload", "topk"}, {"loss_top_k", "8"}});
  KilledRun run = killed("from_cache", split_by_rows(recipe));
  run.launch = [recipe, launch = run.launch](const TemporaryFolder& data, const fs::path& folder) {
    const fs::path cache = data / "writer/cache";
    if (!fs::exists(cache)) write_cache(data / "writer", recipe);
    Overrides arguments = launch(data, folder);
    const Overrides cached = from_cache(cache);
    arguments.insert(arguments.end(), cached.begin(), cached.end());
    return arguments;
  };
  return run;
}

class KilledAndResumed : public testing::TestWithParam<KilledRun> {};

TEST_P(KilledAndResumed, HasTheSameBits) { expect_same_after_kills(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Runs, KilledAndResumed,
    testing::Values(killed_adapter("adapter_dp_zero",
                                   split_by_rows({}, ", distributed_optimizer: true")),
                    killed_adapter("adapter_tp", {.student_world = ", tp: 2"}),
                    killed("drawn_dp", split_by_rows(sampled())),
                    killed("support_of_student", named("student", ", tp: 2", ", tp: 2")),
                    killed("support_union", named("union", ", pp: 2", "")), killed_reader()),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::test
