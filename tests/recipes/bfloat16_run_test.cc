// The first step of every recipe in bfloat16, whole and split over processes, against the same step
// in float32 by one process: the gradient of each parameter.
#include <gtest/gtest.h>

#include "tests/recipes/bfloat16_support.h"
#include "tests/recipes/on_policy_support.h"

namespace retort::test {
namespace {

// Of a step: all that there are, since more of them leave less of what roundings add.
constexpr int64_t kRows = 20, kPairs = 12, kCompletions = 40;

TEST(Bfloat16Run, SftFollowsFloat32) {
  TemporaryFolder folder;
  GoldenRecipe recipe{.student = exact_model(folder, "qwen3"), .steps = 1};
  const Split one{"one", {}};
  const fs::path wanted =
      launch_unclipped(write_recipe(folder / "float32", recipe), settings(one, kRows));
  for (const Split& split : std::vector<Split>{
           one,
           {"tp-sp", {"tp=2", "sequence_parallel=true"}},
           {"pp", {"pp=2"}, 1, 2},
           {"zero", {"distributed_optimizer=true"}, 2},
           {"tp-pp", {"tp=2", "pp=2"}, 1, 2},
       }) {
    SCOPED_TRACE(split.name);
    const fs::path run = launch_unclipped(write_recipe(folder / split.name, recipe),
                                          joined(settings(split, kRows), in_bfloat16({"student"})));
    if (HasFailure()) return;
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

class Bfloat16Distill : public testing::TestWithParam<std::pair<const char*, Split>> {};

TEST_P(Bfloat16Distill, FollowsFloat32) {
  TemporaryFolder folder;
  GoldenRecipe recipe{.student = exact_model(folder, "qwen3"),
                      .teacher = exact_model(folder, "teacher"),
                      .steps = 1,
                      .distill = {{"payload", GetParam().first}, {"kd_ratio", "0.7"}}};
  if (recipe.distill.at("payload") == "topk") recipe.distill["loss_top_k"] = "8";
  const Split one{"one", {}};
  const fs::path wanted =
      launch_unclipped(write_recipe(folder / "float32", recipe), settings(one, kRows));
  for (const Split& split : {one, GetParam().second}) {
    SCOPED_TRACE(split.name);
    const fs::path run =
        launch_unclipped(write_recipe(folder / split.name, recipe),
                         joined(settings(split, kRows), in_bfloat16({"student", "teacher"})));
    if (HasFailure()) return;
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Payloads, Bfloat16Distill,
    testing::Values(std::pair("hidden_states", Split{"tp", {"tp=2"}}),
                    std::pair("topk", Split{"pp", {"pp=2"}, 1, 2}),
                    std::pair("full", Split{"zero", {"distributed_optimizer=true"}, 2})),
    [](const auto& info) { return std::string(info.param.first); });

TEST(Bfloat16Run, DpoFollowsFloat32) {
  TemporaryFolder folder;
  const std::string student = "roles.student.model=" + exact_model(folder, "qwen3").string();
  OnPolicyRecipe recipe{.recipe = "dpo",
                        .data = write_pairs(folder),
                        .reference = exact_model(folder, "teacher"),
                        .steps = 1,
                        .block = {{"beta", "0.3"}}};
  const Split one{"one", {}};
  const fs::path wanted = launch_unclipped(write_on_policy(folder / "float32", recipe),
                                           joined(settings(one, kPairs), {student}));
  for (const Split& split :
       std::vector<Split>{one,
                          {"tp-sp", {"tp=2", "sequence_parallel=true"}},
                          {"pp-zero", {"pp=2", "distributed_optimizer=true"}, 2, 2}}) {
    SCOPED_TRACE(split.name);
    const fs::path run = launch_unclipped(
        write_on_policy(folder / split.name, recipe),
        joined(joined(settings(split, kPairs), in_bfloat16({"student", "reference"})), {student}));
    if (HasFailure()) return;
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

TEST(Bfloat16Run, GrpoFollowsFloat32) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  const std::string student = "roles.student.model=" + model.string();
  OnPolicyRecipe recipe{.data = write_prompts(folder),
                        .generator_model = model,
                        .reference = exact_model(folder, "teacher"),
                        .steps = 1,
                        .block = {{"beta", "0.05"}}};
  recipe.generation["save_samples"] = "true";
  const Split one{"one", {}};
  const fs::path wanted = launch_unclipped(write_on_policy(folder / "float32", recipe),
                                           joined(settings(one, kCompletions), {student}));
  for (const Split& split :
       std::vector<Split>{one, {"tp-sp", {"tp=2", "sequence_parallel=true"}}}) {
    SCOPED_TRACE(split.name);
    const fs::path run =
        launch_unclipped(write_on_policy(folder / split.name, recipe),
                         joined(joined(settings(split, kCompletions),
                                       in_bfloat16({"student", "generator", "reference"})),
                                {student}));
    if (HasFailure()) return;

    // The generator computes in float32 over weights of either dtype: it draws the same.
    expect_same_samples(run, wanted);
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

// Interleaved stages hold two chunks of layers each, which send in either direction in bfloat16.
TEST(Bfloat16Run, SftInterleavedFollowsFloat32) {
  TemporaryFolder folder;
  GoldenRecipe recipe{.student = exact_deep_model(folder, "qwen3", 4), .steps = 1};
  const Split one{"one", {}};
  const fs::path wanted =
      launch_unclipped(write_recipe(folder / "float32", recipe), settings(one, kRows));
  for (const Split& split : std::vector<Split>{
           {"virtual-pp", {"pp=2", "virtual_pp=2"}, 1, 2},
           {"virtual-pp-tp-sp", {"pp=2", "virtual_pp=2", "tp=2", "sequence_parallel=true"}, 1, 2},
       }) {
    SCOPED_TRACE(split.name);
    const fs::path run = launch_unclipped(write_recipe(folder / split.name, recipe),
                                          joined(settings(split, kRows), in_bfloat16({"student"})));
    if (HasFailure()) return;
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

TEST(Bfloat16Run, KtoFollowsFloat32) {
  TemporaryFolder folder;
  const std::string student = "roles.student.model=" + exact_model(folder, "qwen3").string();
  OnPolicyRecipe recipe{.recipe = "kto",
                        .data = goldens() / "labels.jsonl",
                        .reference = exact_model(folder, "teacher"),
                        .steps = 1,
                        .block = {{"beta", "0.3"}, {"undesirable_weight", "0.8"}}};
  const Split one{"one", {}};
  const fs::path wanted = launch_unclipped(write_on_policy(folder / "float32", recipe),
                                           joined(settings(one, kRows), {student}));
  for (const Split& split :
       std::vector<Split>{one,
                          {"tp-sp", {"tp=2", "sequence_parallel=true"}},
                          {"pp-zero", {"pp=2", "distributed_optimizer=true"}, 2, 2}}) {
    SCOPED_TRACE(split.name);
    const fs::path run = launch_unclipped(
        write_on_policy(folder / split.name, recipe),
        joined(joined(settings(split, kRows), in_bfloat16({"student", "reference"})), {student}));
    if (HasFailure()) return;
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

TEST(Bfloat16Run, OnPolicyDistillFollowsFloat32) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  const std::string student = "roles.student.model=" + model.string();
  OnPolicyRecipe recipe{.recipe = "on_policy_distill",
                        .data = write_prompts(folder, kCompletions),
                        .generator_model = model,
                        .teacher = exact_model(folder, "teacher"),
                        .steps = 1,
                        .block = {{"teachers", "[{role: teacher}]"}, {"loss_type", "reverse_kl"}},
                        .generation = {{"max_new_tokens", "10"}},
                        .data_extra = "  packing: false\n"};
  const Split one{"one", {}};
  const fs::path wanted = launch_unclipped(write_on_policy(folder / "float32", recipe),
                                           joined(settings(one, kCompletions), {student}));
  for (const Split& split :
       std::vector<Split>{one, {"tp-sp", {"tp=2", "sequence_parallel=true"}}}) {
    SCOPED_TRACE(split.name);
    const fs::path run = launch_unclipped(
        write_on_policy(folder / split.name, recipe),
        joined(
            joined(settings(split, kCompletions), in_bfloat16({"student", "generator", "teacher"})),
            {student}));
    if (HasFailure()) return;
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

TEST(Bfloat16Run, RejectionSamplingFollowsFloat32) {
  TemporaryFolder folder;
  const fs::path model = exact_model(folder, "qwen3");
  const std::string student = "roles.student.model=" + model.string();
  OnPolicyRecipe recipe{.recipe = "rejection_sampling",
                        .data = write_prompts(folder),
                        .generator_model = model,
                        .steps = 1,
                        .block = {{"rounds", "1"}, {"prompts_per_round", "10"}, {"top_n", "2"}},
                        .data_extra = "  packing: false\n"};
  const Split one{"one", {}};
  const fs::path wanted = launch_unclipped(write_on_policy(folder / "float32", recipe),
                                           joined(settings(one, kRows), {student}));
  for (const Split& split :
       std::vector<Split>{one, {"tp-zero", {"tp=2", "distributed_optimizer=true"}, 2}}) {
    SCOPED_TRACE(split.name);
    const fs::path run = launch_unclipped(
        write_on_policy(folder / split.name, recipe),
        joined(joined(settings(split, kRows), in_bfloat16({"student", "generator"})), {student}));
    if (HasFailure()) return;

    // The generator computes in float32 over weights of either dtype: the same rows are kept.
    EXPECT_EQ(read_lines(run / "kept/round-0.jsonl"), read_lines(wanted / "kept/round-0.jsonl"));
    expect_same_start(run, wanted);
    expect_gradients_follow(run, wanted);
  }
}

}  // namespace
}  // namespace retort::test
