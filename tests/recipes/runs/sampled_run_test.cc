// Whole runs with payload: sampled: drawn by a teacher of ours, over the wire, the same again after
// a stop and from every replica.
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

GoldenRecipe sampled(const std::string& samples, const std::string& replacement = "false") {
  return {.teacher = "teacher",
          .steps = 6,
          .distill = {{"payload", "sampled"},
                      {"num_samples", samples},
                      {"replacement", replacement},
                      {"temperature", "1.3"}}};
}

// The run's folder; the test fails unless it ends with `exit_code`.
fs::path launch(const fs::path& folder, const GoldenRecipe& recipe,
                std::vector<std::string> arguments = {}, int exit_code = 0) {
  arguments.insert(arguments.begin(), {"launch", write_recipe(folder, recipe).string()});
  const CommandResult result = retort(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  return folder / "run";
}

void expect_same_bits(const fs::path& run, const fs::path& other) {
  EXPECT_EQ(timeless_metrics(run), timeless_metrics(other));
  EXPECT_EQ(read_file(run / "final/model.safetensors"),
            read_file(other / "final/model.safetensors"));
}

class SampledRun : public testing::TestWithParam<const char*> {};

TEST_P(SampledRun, ResumesAndFailsOverWithTheSameDraws) {
  TemporaryFolder folder;
  GoldenRecipe recipe = sampled("5", GetParam());
  const fs::path whole = launch(folder / "whole", recipe);
  ASSERT_FALSE(HasFailure());

  launch(folder / "stopped", recipe, {"train.exit_interval=3"}, 4);
  const fs::path resumed = launch(folder / "stopped", recipe, {"--resume"});
  expect_same_bits(resumed, whole);

  recipe.teacher_replicas = 2;
  expect_same_bits(launch(folder / "replicas", recipe), whole);
  const fs::path other = launch(folder / "seed", recipe, {"seed=4"});
  EXPECT_NE(column(other, "kd_loss").at(0), column(whole, "kd_loss").at(0))
      << "or the draws do not depend on the seed";
}

INSTANTIATE_TEST_SUITE_P(Replacement, SampledRun, testing::Values("false", "true"));

void expect_near_losses(const fs::path& run, const fs::path& other, double tolerance) {
  for (const char* key : {"loss", "kd_loss", "grad_norm"}) {
    const auto got = column(run, key), want = column(other, key);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], tolerance * std::abs(want[i])) << key << " of step " << i + 1;
  }
}

// As many draws as there are ids, without replacement: forward KL itself.
TEST(SampledRun, OfAllIdsIsTheFullPayload) {
  TemporaryFolder folder;
  GoldenRecipe drawn = sampled("4096"), full = drawn;
  full.distill = {{"payload", "full"}, {"temperature", "1.3"}};
  const fs::path expected = launch(folder / "full", full);
  ASSERT_FALSE(testing::Test::HasFailure());
  expect_near_losses(launch(folder / "drawn", drawn), expected, 1e-5);

  // Ranks with rows of their own ask, and are drawn for, by themselves.
  drawn.dp = 2;
  drawn.rows = 2;
  expect_near_losses(launch(folder / "dp", drawn), expected, 1e-4);
  drawn.student_world = ", pp: 2";
  expect_near_losses(launch(folder / "dp_pp", drawn), expected, 1e-4);
}

// A student whose ranks share a model asks in parts, or from the rank where its pipeline ends.
TEST(SampledRun, ReachesEveryRankOfAStudent) {
  TemporaryFolder folder;
  GoldenRecipe recipe = sampled("5");
  const fs::path one = launch(folder / "one", recipe);
  for (const std::string split : {"tp", "pp"}) {
    recipe.student_world = ", " + split + ": 2";
    const fs::path two = launch(folder / split, recipe);
    ASSERT_FALSE(testing::Test::HasFailure());
    expect_near_losses(two, one, 1e-4);
  }

  // A teacher whose ranks share the vocabulary draws the same ids, for one rank and for parts.
  recipe.teacher_world = ", tp: 2";
  for (const std::string world : {"", ", tp: 2"}) {
    recipe.student_world = world;
    const fs::path two =
        launch(folder / (world.empty() ? "of_split" : "of_split_to_split"), recipe);
    ASSERT_FALSE(testing::Test::HasFailure());
    expect_near_losses(two, one, 1e-4);
  }
}

TEST(SampledRun, IsRefusedWhereItCannotBe) {
  TemporaryFolder folder;
  const fs::path recipe = write_recipe(folder.path(), sampled("5"));
  const auto refused = [&](const std::string& override_, const std::string& words) {
    const CommandResult result = retort({"launch", recipe.string(), override_});
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
  };
  refused("distill.loss_type=reverse_kl", "works with loss_type: forward_kl only");
  refused("distill.num_samples=0", "num_samples must be in");
  refused("distill.tail=drop", "has no effect without payload: topk");
  refused("distill.payload_dtype=bfloat16", "has no effect without payload: topk");
}

}  // namespace
}  // namespace retort::test
