// Whole runs with the student split over processes: they are the run of one process, and go on in
// another layout.
#include <gtest/gtest.h>

#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

// What stands after `roles.student.world.` on the command line.
using World = std::vector<std::string>;

std::vector<std::string> settings(const World& world) {
  std::vector<std::string> all;
  for (const std::string& setting : world)
    all.push_back("roles.student.world." + setting);
  return all;
}

std::vector<std::string> launch(const fs::path& recipe, const World& world,
                                std::vector<std::string> more = {}) {
  std::vector<std::string> args{"launch", recipe.string()};
  for (const std::string& setting : settings(world))
    args.push_back(setting);
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void expect_same_run(const fs::path& got, const fs::path& want, const std::string& what) {
  for (const std::string name : {"loss", "grad_norm", "num_tokens"}) {
    const auto a = column(got, name), b = column(want, name);
    ASSERT_EQ(a.size(), b.size()) << what << " " << name;
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_NEAR(a[i], b[i], 1e-5 * b[i]) << what << " " << name << " at step " << i + 1;
  }
  EXPECT_LE(relative_difference(got / "final", want / "final"), 1e-5) << what;
}

TEST(ParallelRun, SftIsTheRunOfOneProcess) {
  TemporaryFolder folder;
  const GoldenRecipe recipe;
  const auto whole = retort(launch(write_recipe(folder / "one", recipe), {}));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  struct Split {
    World world;
    int64_t rows = 4, accumulation = 1;  // on each dp rank: the global batch is the same
  };
  const std::vector<Split> splits{{{"tp=2"}},
                                  {{"tp=2", "sequence_parallel=true", "pp=2"}, 1, 4},
                                  {{"tp=2", "dp=2", "distributed_optimizer=true"}, 2, 1},
                                  {{"pp=2", "dp=2"}, 1, 2}};
  int number = 0;
  for (const auto& [world, rows, accumulation] : splits) {
    const std::string name = "layout-" + std::to_string(number++);
    GoldenRecipe split = recipe;
    split.rows = rows;
    split.accumulation = accumulation;
    const auto result = retort(launch(write_recipe(folder / name, split), world));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    expect_same_run(fs::path(folder / name) / "run", folder / "one/run", name);
  }
}

// The run that TRL's loop gave, once more with the policy in four processes.
TEST(ParallelRun, DpoMatchesTrl) {
  const nlohmann::json golden = golden_cases("preference").at("sigmoid");
  for (const World& world : {World{"tp=2", "pp=2"}, World{"tp=2", "sequence_parallel=true"}}) {
    TemporaryFolder folder;
    const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"), settings(world));
    ASSERT_FALSE(HasFailure());
    expect_columns(run, golden,
                   {"loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/margins",
                    "rewards/accuracies", "logps/chosen", "logps/rejected"},
                   1e-6);
    expect_same_parameters(run, "qwen3", "preference_changes", "sigmoid");
  }
}

struct Move {
  World from, to;
  int64_t rows_from = 4, rows_to = 4;  // per dp rank: the global batch stays the same
};

class MovedRun : public testing::TestWithParam<size_t> {};

TEST_P(MovedRun, GoesOnInAnotherLayout) {
  const std::vector<Move> moves{
      {.from = {"tp=2"}, .to = {"pp=2"}},
      {.from = {"dp=4", "distributed_optimizer=true"},
       .to = {"dp=2"},
       .rows_from = 1,
       .rows_to = 2},
      {.from = {"tp=2", "pp=2"}, .to = {"dp=2", "distributed_optimizer=true"}, .rows_to = 2},
      {.from = {}, .to = {"pp=2", "tp=2", "sequence_parallel=true"}},
  };
  const Move& move = moves[GetParam()];
  TemporaryFolder folder;
  GoldenRecipe recipe;
  recipe.steps = 10;
  recipe.rows = move.rows_from;
  const fs::path whole = write_recipe(folder / "whole", recipe);
  const auto uninterrupted = retort(launch(whole, move.from, {"train.save_steps=5"}));
  ASSERT_EQ(uninterrupted.exit_code, 0) << uninterrupted.output;
  const fs::path moved = write_recipe(folder / "moved", recipe);
  // The run as it was after five steps.
  fs::copy(folder / "whole/run", folder / "moved/run",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove_all(folder / "moved/run/checkpoint-10");
  fs::remove(folder / "moved/run/final");
  const auto result =
      retort(launch(moved, move.to,
                    {"--resume", "train.save_steps=5",
                     "train.per_device_train_batch_size=" + std::to_string(move.rows_to)}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_same_run(folder / "moved/run", folder / "whole/run", "moved");
  ASSERT_EQ(column(folder / "moved/run", "loss").size(), 10u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MovedRun, testing::Range(size_t{0}, size_t{4}));

// All ranks agree on the step at which the time is up, save it and end; the run goes on from there.
TEST(ParallelRun, EndsTogetherWhenTimeIsUp) {
  TemporaryFolder folder;
  const GoldenRecipe recipe;
  const World world{"tp=2", "pp=2"};
  const fs::path whole = write_recipe(folder / "whole", recipe),
                 cut = write_recipe(folder / "cut", recipe);
  ASSERT_EQ(retort(launch(whole, world)).exit_code, 0);
  const auto first = retort(launch(cut, world, {"train.max_time=1ms"}));
  ASSERT_EQ(first.exit_code, 4) << first.output;
  EXPECT_NE(
      first.output.find("stopped; continue with: retort launch " + cut.string() + " --resume"),
      std::string::npos)
      << first.output;
  EXPECT_EQ(column(folder / "cut/run", "loss").size(), 1u);
  EXPECT_TRUE(fs::exists(folder / "cut/run/checkpoint-1/state/COMPLETE"));
  EXPECT_FALSE(fs::exists(folder / "cut/run/final"));
  const auto rest = retort(launch(cut, world, {"--resume"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  expect_same_run(folder / "cut/run", folder / "whole/run", "cut");
}

// The same layout: bit for bit.
TEST(ResumedRun, InTheSameLayoutIsBitForBit) {
  TemporaryFolder folder;
  GoldenRecipe recipe;
  recipe.steps = 8;
  recipe.rows = 2;
  const World world{"tp=2", "dp=2", "sequence_parallel=true", "distributed_optimizer=true"};
  const auto whole =
      retort(launch(write_recipe(folder / "whole", recipe), world, {"train.save_steps=4"}));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const fs::path again = write_recipe(folder / "again", recipe);
  fs::copy(folder / "whole/run", folder / "again/run",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove_all(folder / "again/run/checkpoint-8");
  fs::remove(folder / "again/run/final");
  const auto result = retort(launch(again, world, {"--resume", "train.save_steps=4"}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(timeless_metrics(folder / "again/run"), timeless_metrics(folder / "whole/run"));
  EXPECT_EQ(relative_difference(folder / "again/run/final", folder / "whole/run/final"), 0);
}

}  // namespace
}  // namespace retort::test
