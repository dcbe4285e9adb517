// The first step of every recipe in bfloat16, whole and split over processes, against the same step
// in float32 by one process: the gradient of each parameter.
#include <gtest/gtest.h>

#include "tests/recipes/run_support/bfloat16_support.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

// Of a step: all that there are, since more of them leave less of what roundings add.
constexpr int64_t kRows = 20, kPairs = 12, kCompletions = 40;

TEST(Bfloat16Run, SftFollowsFloat32) {
  TemporaryFolder folder;
  const GoldenRecipe recipe{.student = exact_model(folder, "qwen3"), .steps = 1};
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_recipe(folder / name, recipe); }, kRows,
      {"student"},
      {kWhole,
       {"tp-sp", {"tp=2", "sequence_parallel=true"}},
       {"pp", {"pp=2"}, 1, 2},
       {"zero", {"distributed_optimizer=true"}, 2},
       {"tp-pp", {"tp=2", "pp=2"}, 1, 2}});
}

class Bfloat16Distill : public testing::TestWithParam<std::pair<const char*, std::vector<Split>>> {
};

TEST_P(Bfloat16Distill, FollowsFloat32) {
  TemporaryFolder folder;
  GoldenRecipe recipe{.student = exact_model(folder, "qwen3"),
                      .teacher = exact_model(folder, "teacher"),
                      .steps = 1,
                      .distill = {{"payload", GetParam().first}, {"kd_ratio", "0.7"}}};
  if (recipe.distill.at("payload") == "topk") recipe.distill["loss_top_k"] = "8";
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_recipe(folder / name, recipe); }, kRows,
      {"student", "teacher"}, GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(
    Payloads, Bfloat16Distill,
    testing::Values(std::pair("hidden_states", std::vector<Split>{kWhole, {"tp", {"tp=2"}}}),
                    std::pair("topk", std::vector<Split>{{"pp", {"pp=2"}, 1, 2}}),
                    std::pair("full",
                              std::vector<Split>{{"zero", {"distributed_optimizer=true"}, 2}})),
    [](const auto& info) { return std::string(info.param.first); });

TEST(Bfloat16Run, DpoFollowsFloat32) {
  TemporaryFolder folder;
  const OnPolicyRecipe recipe{.recipe = "dpo",
                              .data = write_pairs(folder),
                              .reference = exact_model(folder, "teacher"),
                              .steps = 1,
                              .block = {{"beta", "0.3"}}};
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kPairs,
      {"student", "reference"},
      {{"tp-sp", {"tp=2", "sequence_parallel=true"}},
       {"pp-zero", {"pp=2", "distributed_optimizer=true"}, 2, 2}},
      {"roles.student.model=" + exact_model(folder, "qwen3").string()});
}

TEST(Bfloat16Run, GrpoFollowsFloat32) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  OnPolicyRecipe recipe{.data = write_prompts(folder),
                        .generator_model = model,
                        .reference = exact_model(folder, "teacher"),
                        .steps = 1,
                        .block = {{"beta", "0.05"}}};
  recipe.generation["save_samples"] = "true";
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kCompletions,
      {"student", "generator", "reference"},
      {kWhole, {"tp-sp", {"tp=2", "sequence_parallel=true"}}},
      {"roles.student.model=" + model.string()});
  if (HasFailure()) return;

  // The generator computes in float32 over weights of either dtype: it draws the same.
  for (const char* split : {"one", "tp-sp"})
    expect_same_samples(folder / split / "run", folder / "float32/run");
}

// Interleaved stages hold two chunks of layers each, which send in either direction in bfloat16.
TEST(Bfloat16Run, SftInterleavedFollowsFloat32) {
  TemporaryFolder folder;
  const GoldenRecipe recipe{.student = exact_deep_model(folder, "qwen3", 4), .steps = 1};
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_recipe(folder / name, recipe); }, kRows,
      {"student"},
      {{"virtual-pp", {"pp=2", "virtual_pp=2"}, 1, 2},
       {"virtual-pp-tp-sp", {"pp=2", "virtual_pp=2", "tp=2", "sequence_parallel=true"}, 1, 2}});
}

TEST(Bfloat16Run, KtoFollowsFloat32) {
  TemporaryFolder folder;
  const OnPolicyRecipe recipe{.recipe = "kto",
                              .data = goldens() / "labels.jsonl",
                              .reference = exact_model(folder, "teacher"),
                              .steps = 1,
                              .block = {{"beta", "0.3"}, {"undesirable_weight", "0.8"}}};
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kRows,
      {"student", "reference"}, {kWhole, {"pp-zero", {"pp=2", "distributed_optimizer=true"}, 2, 2}},
      {"roles.student.model=" + exact_model(folder, "qwen3").string()});
}

TEST(Bfloat16Run, OnPolicyDistillFollowsFloat32) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  const OnPolicyRecipe recipe{
      .recipe = "on_policy_distill",
      .data = write_prompts(folder, kCompletions),
      .generator_model = model,
      .teacher = exact_model(folder, "teacher"),
      .steps = 1,
      .block = {{"teachers", "[{role: teacher}]"}, {"loss_type", "reverse_kl"}},
      .generation = {{"max_new_tokens", "10"}},
      .data_extra = "  packing: false\n"};
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kCompletions,
      {"student", "generator", "teacher"}, {kWhole, {"tp-sp", {"tp=2", "sequence_parallel=true"}}},
      {"roles.student.model=" + model.string()});
}

TEST(Bfloat16Run, RejectionSamplingFollowsFloat32) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  const OnPolicyRecipe recipe{
      .recipe = "rejection_sampling",
      .data = write_prompts(folder),
      .generator_model = model,
      .steps = 1,
      .block = {{"rounds", "1"}, {"prompts_per_round", "10"}, {"top_n", "2"}},
      .data_extra = "  packing: false\n"};
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kRows,
      {"student", "generator"}, {kWhole, {"tp-zero", {"tp=2", "distributed_optimizer=true"}, 2}},
      {"roles.student.model=" + model.string()});
  if (HasFailure()) return;

  // The generator computes in float32 over weights of either dtype: the same rows are kept.
  for (const char* split : {"one", "tp-zero"})
    EXPECT_EQ(read_lines(folder / split / "run/kept/round-0.jsonl"),
              read_lines(folder / "float32/run/kept/round-0.jsonl"));
}

}  // namespace
}  // namespace retort::test
