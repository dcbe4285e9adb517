// What a run in bfloat16 keeps in float32: masters, which move as float32 parameters do, survive a
// resume, and reach the generator rounded.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/generation/score.h"
#include "models/safetensors/safetensors.h"
#include "tests/recipes/run_support/bfloat16_support.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

// The parameters that a checkpoint holds are its masters, rounded; bit for bit.
void expect_rounded_masters(const fs::path& checkpoint) {
  const models::SafetensorsReader weights(checkpoint),
      state(checkpoint / "state/optimizer.safetensors");
  ASSERT_FALSE(weights.names().empty());
  bool rounded = false;
  for (const std::string& name : weights.names()) {
    const at::Tensor master = state.get(name + ".master");
    ASSERT_EQ(master.scalar_type(), at::kFloat);
    const at::Tensor expected = master.to(at::kBFloat16);
    EXPECT_TRUE(at::equal(weights.get(name).to(at::kFloat), expected.to(at::kFloat))) << name;
    rounded = rounded || !at::equal(expected.to(at::kFloat), master);
  }
  EXPECT_TRUE(rounded) << "the masters are no more than the parameters";
}

// Four of five updates of 1e-4 are below half a step of a weight of 0.2 in bfloat16 (5e-4).
constexpr const char* kSmallRate = "train.learning_rate=1e-4";

TEST(Bfloat16State, MastersMoveAsFloat32Parameters) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  const GoldenRecipe recipe{.student = model, .rows = 10, .steps = 8};
  const fs::path wide = launch_unclipped(write_recipe(folder / "float32", recipe), {kSmallRate});
  const fs::path half = launch_unclipped(write_recipe(folder / "bfloat16", recipe),
                                         {kSmallRate, "roles.student.dtype=bfloat16"});
  if (HasFailure()) return;
  expect_rounded_masters(half / "final");

  // The way from the start, all parameters as one vector. Adam's step is nearly the sign of a
  // gradient, which roundings turn where it is small: 4 % off. Without masters most updates are
  // lost, or as large as a step of bfloat16: as far off as the way is long, or more.
  const models::SafetensorsReader start(model), there(wide / "final"),
      masters(half / "final/state/optimizer.safetensors");
  double off = 0, way = 0;
  for (const std::string& name : start.names()) {
    const at::Tensor begin = start.get(name).to(at::kDouble);
    const at::Tensor moved = masters.get(name + ".master").to(at::kDouble) - begin;
    const at::Tensor wanted = there.get(name).to(at::kDouble) - begin;
    off += (moved - wanted).square().sum().item<double>();
    way += wanted.square().sum().item<double>();
  }
  RecordProperty("off", std::to_string(std::sqrt(off / way)));
  EXPECT_GT(way, 0);
  EXPECT_LT(std::sqrt(off / way), 0.12);

  // And the loss, at every step.
  const auto got = column(half, "loss"), want = column(wide, "loss");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 0.003 * want[i]) << "step " << i + 1;
}

class Bfloat16Resume : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Bfloat16Resume, GoesOnBitForBit) {
  TemporaryFolder folder;
  const GoldenRecipe recipe{.student = exact_model(folder, "qwen3"), .rows = 2, .steps = 6};
  std::vector<std::string> settings{kSmallRate, "roles.student.dtype=bfloat16",
                                    "train.save_steps=3"};
  settings.insert(settings.end(), GetParam().begin(), GetParam().end());
  const fs::path whole = launch_unclipped(write_recipe(folder / "whole", recipe), settings);
  if (HasFailure()) return;

  // The run as it was after three steps.
  const fs::path again = write_recipe(folder / "again", recipe);
  fs::copy(whole, folder / "again/run",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::remove_all(folder / "again/run/checkpoint-6");
  fs::remove(folder / "again/run/final");
  settings.push_back("--resume");
  const fs::path run = launch_unclipped(again, settings);
  if (HasFailure()) return;
  EXPECT_EQ(timeless_metrics(run), timeless_metrics(whole));
  for (const char* file : {"model.safetensors", "state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(run / "final" / file) == read_file(whole / "final" / file)) << file;
  expect_rounded_masters(run / "final");
}

using Settings = std::vector<std::string>;
const Settings kZero{"roles.student.world.dp=2", "roles.student.world.distributed_optimizer=true"};
const Settings kTpPp{"roles.student.world.tp=2", "roles.student.world.pp=2"};

INSTANTIATE_TEST_SUITE_P(One, Bfloat16Resume, testing::Values(Settings{}));
INSTANTIATE_TEST_SUITE_P(Zero, Bfloat16Resume, testing::Values(kZero));
INSTANTIATE_TEST_SUITE_P(TpPp, Bfloat16Resume, testing::Values(kTpPp));

// The samples of a step against the checkpoint of the weights that they name: the generator had
// these, to the last bit that its numbers tell.
TEST(Bfloat16State, TheGeneratorHasTheRoundedMasters) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  OnPolicyRecipe recipe{
      .data = write_prompts(folder), .generator_model = model, .steps = 4, .save_steps = 1};
  recipe.generation["save_samples"] = "true";
  std::vector<std::string> settings = in_bfloat16({"student", "generator"});
  settings.insert(settings.end(),
                  {"roles.student.model=" + model.string(), "train.save_total_limit=10",
                   "roles.student.world.tp=2", "roles.generator.world.tp=2"});
  const fs::path run = launch_unclipped(write_on_policy(folder / "run", recipe), settings);
  if (HasFailure()) return;

  // By weights: what was drawn with them, scored in float32 over what the checkpoint holds.
  int64_t compared = 0;
  for (int64_t step = 1; step < 4; ++step) {
    const fs::path checkpoint = run / ("checkpoint-" + std::to_string(step));
    expect_rounded_masters(checkpoint);
    const models::Decoder decoder = models::load_decoder(checkpoint, at::kFloat);
    const models::Decoder before = models::load_decoder(
        step == 1 ? model : run / ("checkpoint-" + std::to_string(step - 1)), at::kFloat);
    double largest = 0;
    for (const auto& [key, row] : read_samples(run)) {
      if (key.first != step + 1) continue;
      std::vector<int32_t> ids = row.at("prompt_ids");
      const auto prompt = static_cast<int64_t>(ids.size());
      for (const int32_t id : row.at("token_ids"))
        ids.push_back(id);
      const std::vector<double> drawn = row.at("logps");
      const auto scored =
          models::score(decoder, {.sequences = {ids}, .prompt_lengths = {prompt}}).at(0);
      const auto older =
          models::score(before, {.sequences = {ids}, .prompt_lengths = {prompt}}).at(0);
      ASSERT_EQ(scored.size(), drawn.size());
      for (size_t i = 0; i < drawn.size(); ++i, ++compared) {
        EXPECT_NEAR(scored[i], drawn[i], 2e-5) << "step " << step + 1;
        largest = std::max(largest, std::abs(older[i] - drawn[i]));
      }
    }
    EXPECT_GT(largest, 1e-3) << "older weights would pass too";
  }
  EXPECT_GT(compared, 50);
}

}  // namespace
}  // namespace retort::test
