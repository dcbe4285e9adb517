// Whole runs of the real program whose roles all compute on one device: in float32 against the
// numbers that PyTorch and TRL have for the same recipe and against the same run on the CPU; in
// bfloat16 the gradients of the first step against those of float32 on the CPU.
#include <gtest/gtest.h>

#include "tests/gpu/device_under_test.h"
#include "tests/recipes/run_support/bfloat16_support.h"
#include "tests/recipes/run_support/device_cases.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

// Of a step: all that there are, as in bfloat16_run_test.
constexpr int64_t kRows = 20, kPairs = 12, kCompletions = 40;

// Sums of a device have another order than the CPU's, and AdamW makes whole steps of the rounding
// of gradients that are close to 0.
constexpr DeviceBounds kFloat32{.metrics = 1e-5, .parameters = 1e-5};

class GpuRun : public testing::TestWithParam<DeviceCase> {};

TEST_P(GpuRun, TrainsAsOnTheCpu) {
  RETORT_NEEDS_DEVICES(1);
  expect_trains_as_on_the_cpu(GetParam(), "cuda:0", kFloat32);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuRun, testing::ValuesIn(device_cases()),
                         [](const auto& info) { return name_of(info.param); });

// All roles on the device, in bfloat16; the run that is followed is the CPU's.
Split on_device(const std::vector<std::string>& roles) {
  Split split{.name = "cuda", .world = {}, .more = {}};
  for (const std::string& role : roles)
    split.more.push_back("roles." + role + ".world.device=cuda");
  return split;
}

void expect_bfloat16_follows_on_device(const WriteRun& write, int64_t rows,
                                       const std::vector<std::string>& roles,
                                       const std::vector<std::string>& more = {}) {
  expect_bfloat16_follows(write, rows, roles, {on_device(roles)}, more);
}

TEST(GpuBfloat16Run, SftFollowsFloat32) {
  RETORT_NEEDS_DEVICES(1);
  TemporaryFolder folder;
  const GoldenRecipe recipe{.student = exact_model(folder, "qwen3"), .steps = 1};
  expect_bfloat16_follows_on_device(
      [&](const std::string& name) { return write_recipe(folder / name, recipe); }, kRows,
      {"student"});
}

class GpuBfloat16Distill : public testing::TestWithParam<const char*> {};

TEST_P(GpuBfloat16Distill, FollowsFloat32) {
  RETORT_NEEDS_DEVICES(1);
  TemporaryFolder folder;
  GoldenRecipe recipe{.student = exact_model(folder, "qwen3"),
                      .teacher = exact_model(folder, "teacher"),
                      .steps = 1,
                      .distill = {{"payload", GetParam()}, {"kd_ratio", "0.7"}}};
  if (recipe.distill.at("payload") == "topk") recipe.distill["loss_top_k"] = "8";
  expect_bfloat16_follows_on_device(
      [&](const std::string& name) { return write_recipe(folder / name, recipe); }, kRows,
      {"student", "teacher"});
}

INSTANTIATE_TEST_SUITE_P(Payloads, GpuBfloat16Distill,
                         testing::Values("hidden_states", "topk", "full"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GpuBfloat16Run, DpoFollowsFloat32) {
  RETORT_NEEDS_DEVICES(1);
  TemporaryFolder folder;
  const OnPolicyRecipe recipe{.recipe = "dpo",
                              .data = write_pairs(folder),
                              .reference = exact_model(folder, "teacher"),
                              .steps = 1,
                              .block = {{"beta", "0.3"}}};
  expect_bfloat16_follows_on_device(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kPairs,
      {"student", "reference"}, {"roles.student.model=" + exact_model(folder, "qwen3").string()});
}

// The generator computes on the CPU: one in bfloat16 on a device draws other tokens.
TEST(GpuBfloat16Run, GrpoFollowsFloat32) {
  RETORT_NEEDS_DEVICES(1);
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  const OnPolicyRecipe recipe{.data = write_prompts(folder),
                              .generator_model = model,
                              .reference = exact_model(folder, "teacher"),
                              .steps = 1,
                              .block = {{"beta", "0.05"}}};
  expect_bfloat16_follows(
      [&](const std::string& name) { return write_on_policy(folder / name, recipe); }, kCompletions,
      {"student", "generator", "reference"}, {on_device({"student", "reference"})},
      {"roles.student.model=" + model.string()});
}

}  // namespace
}  // namespace retort::test

int main(int argc, char** argv) {
  retort::gpu_testing::find_device();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
