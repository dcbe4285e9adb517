// Runs in float16: the first step of every recipe, whole and split over processes, against the same
// step in float32 by one process; the loss scale of a run, and what a resumed run knows of it.
#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/recipes/run_support/bfloat16_support.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

// Of a step: all that there are, since more of them leave less of what roundings add.
constexpr int64_t kTexts = 20, kPairsOfStep = 12, kSamplesOfStep = 40;

TEST(Float16Run, SftFollowsFloat32) {
  TemporaryFolder folder;
  const GoldenRecipe recipe{.student = exact_model(folder, "qwen3"), .steps = 1};
  expect_float16_follows(
      [&](const std::string& name) { return write_recipe(folder / name, recipe); }, kTexts,
      {"student"},
      {kWhole,
       {"tp-sp", {"tp=2", "sequence_parallel=true"}},
       {"pp", {"pp=2"}, 1, 2},
       {"zero", {"distributed_optimizer=true"}, 2},
       {"tp-pp", {"tp=2", "pp=2"}, 1, 2}});
}

TEST(Float16Run, DistillFollowsFloat32) {
  TemporaryFolder folder;
  const GoldenRecipe recipe{.student = exact_model(folder, "qwen3"),
                            .teacher = exact_model(folder, "teacher"),
                            .steps = 1,
                            .distill = {{"payload", "hidden_states"}, {"kd_ratio", "0.7"}}};
  expect_float16_follows(
      [&](const std::string& name) { return write_recipe(folder / name, recipe); }, kTexts,
      {"student", "teacher"}, {{"tp", {"tp=2"}}});
}

TEST(Float16Run, DpoFollowsFloat32) {
  TemporaryFolder folder;
  const OnPolicyRecipe recipe{.recipe = "dpo",
                              .data = write_pairs(folder),
                              .reference = exact_model(folder, "teacher"),
                              .steps = 1,
                              .block = {{"beta", "0.3"}}};
  expect_float16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kPairsOfStep,
      {"student", "reference"}, {{"pp-zero", {"pp=2", "distributed_optimizer=true"}, 2, 2}},
      {"roles.student.model=" + exact_model(folder, "qwen3").string()});
}

TEST(Float16Run, KtoFollowsFloat32) {
  TemporaryFolder folder;
  const OnPolicyRecipe recipe{.recipe = "kto",
                              .data = goldens() / "labels.jsonl",
                              .reference = exact_model(folder, "teacher"),
                              .steps = 1,
                              .block = {{"beta", "0.3"}}};
  expect_float16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kTexts,
      {"student", "reference"}, {{"tp", {"tp=2"}}},
      {"roles.student.model=" + exact_model(folder, "qwen3").string()});
}

TEST(Float16Run, GrpoFollowsFloat32) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  OnPolicyRecipe recipe{.data = write_prompts(folder),
                        .generator_model = model,
                        .reference = exact_model(folder, "teacher"),
                        .steps = 1,
                        .block = {{"beta", "0.05"}}};
  recipe.generation["save_samples"] = "true";
  expect_float16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); },
      kSamplesOfStep, {"student", "generator", "reference"},
      {kWhole, {"tp-sp", {"tp=2", "sequence_parallel=true"}}},
      {"roles.student.model=" + model.string()});
  expect_same_samples(folder / "one/run", folder / "float32/run");
}

// A scale that is far too large: the first steps overflow on all ranks, whichever of them holds
// what does, and change nothing; then the run goes on, and the scale grows again.
const std::vector<std::string> kTooLarge{"roles.student.dtype=float16",
                                         "train.initial_loss_scale=16777216",
                                         "train.loss_scale_window=3"};

class Float16Scale : public testing::TestWithParam<Split> {};

TEST_P(Float16Scale, FallsAndGrowsAndGoesOnBitForBit) {
  TemporaryFolder folder;
  const GoldenRecipe recipe{.student = exact_model(folder, "qwen3"), .steps = 16};
  std::vector<std::string> words = joined(joined(settings(GetParam(), 4), kTooLarge),
                                          {"train.lr_scheduler_type=linear", "train.save_steps=8"});
  const fs::path whole = launch_unclipped(write_recipe(folder / "whole", recipe), words);
  if (HasFailure()) return;

  // By the rule of the reference: half after each skipped step, twice after three good ones.
  const auto scales = column(whole, "loss_scale"), skipped = column(whole, "skipped_steps");
  const auto rates = column(whole, "learning_rate");
  ASSERT_EQ(scales.size(), 16u);
  double scale = 16777216;
  int64_t good = 0, grown = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    EXPECT_EQ(scales[i], scale) << "step " << i + 1;
    const double updates = static_cast<double>(i) - (i == 0 ? 0 : skipped[i - 1]);
    EXPECT_NEAR(rates[i], 1e-3 * (1 - updates / 16), 1e-12) << "step " << i + 1;
    const bool overflowed = skipped[i] > (i == 0 ? 0 : skipped[i - 1]);
    good = overflowed ? 0 : good + 1;
    if (overflowed) scale /= 2;
    if (good == 3) {
      scale *= 2;
      good = 0;
      ++grown;
    }
  }
  EXPECT_GE(skipped[0], 1);
  EXPECT_GE(grown, 1);
  EXPECT_LE(skipped.back(), 14) << "hardly any step was done";

  // The run as it was after eight steps knows the scale and how many steps it has been good for.
  const fs::path again = write_recipe(folder / "again", recipe);
  fs::copy(whole, folder / "again/run",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove_all(folder / "again/run/checkpoint-16");
  fs::remove(folder / "again/run/final");
  words.push_back("--resume");
  const fs::path run = launch_unclipped(again, words);
  if (HasFailure()) return;
  EXPECT_EQ(timeless_metrics(run), timeless_metrics(whole));
  for (const char* file : {"model.safetensors", "state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(run / "final" / file) == read_file(whole / "final" / file)) << file;
}

INSTANTIATE_TEST_SUITE_P(Splits, Float16Scale,
                         testing::Values(kWhole, Split{"zero", {"distributed_optimizer=true"}, 2},
                                         Split{"tppp", {"tp=2", "pp=2"}, 1, 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retort::test
