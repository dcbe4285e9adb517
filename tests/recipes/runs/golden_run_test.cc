// Whole runs of `retort launch` against a single-process PyTorch loop: losses, gradient norms and
// parameters of 5 AdamW steps; and against TRL's whole trainers.
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

nlohmann::json expected(const std::string& name) { return golden_cases("expected").at(name); }

// status.json of a run that is done: every process ended as it should.
void expect_done(const fs::path& run, size_t processes) {
  const auto status = nlohmann::json::parse(read_file(run / "status.json"));
  EXPECT_EQ(status.at("state"), "done");
  EXPECT_EQ(status.at("exit_code"), 0);
  EXPECT_EQ(status.at("step"), status.at("max_steps"));
  EXPECT_TRUE(status.at("loss").is_number());
  EXPECT_EQ(status.at("processes").size(), processes);
  for (const auto& process : status.at("processes")) {
    EXPECT_EQ(process.at("state"), "stopped") << process;
    EXPECT_EQ(process.at("exit_code"), 0) << process;
    EXPECT_GT(process.at("step"), 0) << process;
  }
}

class GoldenRun : public testing::TestWithParam<std::string> {};

TEST_P(GoldenRun, MatchesPyTorch) {
  const std::string name = GetParam();
  const nlohmann::json want = expected(name);
  TemporaryFolder folder;
  GoldenRecipe recipe;
  const bool distills = want.contains("distill");
  if (distills) {
    recipe.student = want.value("student", "qwen3");
    recipe.teacher = want.value("teacher", "teacher");
    for (const auto& [key, value] : want.at("distill").items())
      recipe.distill[key] = value.is_string() ? value.get<std::string>() : value.dump();
  } else {
    recipe.student = name.substr(std::string("sft_").size());
  }
  const auto result = retort({"launch", write_recipe(folder.path(), recipe).string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_close(column(folder / "run", "loss"), want.at("losses"), "loss");
  expect_close(column(folder / "run", "grad_norm"), want.at("grad_norms"), "grad_norm");
  if (distills) {
    expect_close(column(folder / "run", "kd_loss"), want.at("kd"), "kd_loss");
    expect_close(column(folder / "run", "ce_loss"), want.at("ce"), "ce_loss");
  }
  expect_same_parameters(folder / "run", recipe.student, "changes", name);
  expect_done(folder / "run", distills ? 2 : 1);
}

// What TRL's whole trainers log on the same rows: their tokens, batches, losses and updates.
class TrainerRun : public testing::TestWithParam<std::string> {};

TEST_P(TrainerRun, MatchesTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("trainers").at(GetParam());
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"));
  ASSERT_FALSE(HasFailure());
  if (golden.contains("samples")) expect_recorded_samples(run, golden);
  ASSERT_FALSE(HasFailure()) << "other samples: the rest cannot agree";

  std::vector<std::string> keys;
  for (const auto& [key, values] : golden.items())
    if (key != "recipe" && key != "samples") keys.push_back(key);
  ASSERT_GE(keys.size(), 2u);
  // Losses of a policy's first step are 0, margins differences of numbers of about 36.
  expect_columns(run, golden, keys, 4e-6);
}

// meeting_run_test.cc has grpo_correction.
INSTANTIATE_TEST_SUITE_P(Cases, TrainerRun,
                         testing::Values("sft", "dpo", "kto", "reward_model", "grpo", "grpo_kl",
                                         "on_policy_distill", "on_policy_jsd"),
                         [](const auto& info) { return info.param; });

std::vector<std::string> names() {
  // The test binary lists its cases before ctest's environment is needed; the goldens are beside
  // this file.
  return {"sft_llama",
          "sft_mistral",
          "sft_qwen2",
          "sft_qwen3",
          "sft_padded",
          "forward_hidden",
          "forward_hidden_mix",
          "reverse_hidden",
          "jsd_full",
          "skewed_full",
          "tvd_hidden",
          "forward_topk_bucket",
          "jsd_topk_bucket",
          "reverse_topk_bucket",
          "skewed_reverse_hidden",
          "forward_topk_renormalize",
          "forward_topk_drop",
          "padded_forward_hidden",
          "padded_forward_topk_bucket",
          "padded_reverse_full"};
}
INSTANTIATE_TEST_SUITE_P(Cases, GoldenRun, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

// Families that differ most from Llama, in one process and with each layer cut in two.
class FamilyRun : public testing::TestWithParam<const char*> {};

TEST_P(FamilyRun, MatchesPyTorch) {
  const std::string name = GetParam();
  const nlohmann::json want = golden_cases("families").at(name);
  for (const char* world : {"", ", tp: 2"}) {
    TemporaryFolder folder;
    const GoldenRecipe recipe{.student = name, .student_world = world};
    const auto result = retort({"launch", write_recipe(folder.path(), recipe).string()});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    expect_close(column(folder / "run", "loss"), want.at("losses"), "loss");
    expect_close(column(folder / "run", "grad_norm"), want.at("grad_norms"), "grad_norm");
    expect_same_parameters(folder / "run", name, "families_changes", name);
    expect_done(folder / "run", std::string(world).empty() ? 1 : 2);
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, FamilyRun, testing::Values("yarn", "phi3", "gemma2", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

// A teacher's head is sent without what caps its logits; what the teacher computes itself is not.
TEST(CappedTeacher, SendsWhatItComputesItself) {
  TemporaryFolder folder;
  GoldenRecipe recipe{
      .student = "gemma3", .teacher = "gemma2", .steps = 2, .distill = {{"payload", "topk"}}};
  const auto topk = retort({"launch", write_recipe(folder.path(), recipe).string()});
  EXPECT_EQ(topk.exit_code, 0) << topk.output;

  recipe.distill["payload"] = "hidden_states";
  const std::string path = write_recipe(folder.path(), recipe).string();
  for (const char* command : {"launch", "plan", "check"}) {
    const auto result = retort({command, path});
    EXPECT_EQ(result.exit_code, 2) << command;
    EXPECT_NE(result.output.find("roles.teacher.model: "), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("final_logit_softcapping"), std::string::npos) << result.output;
  }
}

// The comparison can fail: another temperature is far outside the tolerance.
TEST(GoldenRunDetects, AnotherTemperature) {
  TemporaryFolder folder;
  GoldenRecipe recipe{.teacher = "teacher",
                      .distill = {{"payload", "hidden_states"}, {"temperature", "1.001"}}};
  const auto result = retort({"launch", write_recipe(folder.path(), recipe).string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const double got = column(folder / "run", "loss").at(0),
               want = expected("forward_hidden").at("losses")[0].get<double>();
  EXPECT_GT(std::abs(got - want), 1e-4 * want);
}

// train.tokens_per_batch in place of a number of rows: packs of up to 128 tokens.
TEST(TokensPerBatch, TrainsARecipe) {
  TemporaryFolder folder;
  const std::string recipe =
      "recipe: sft\noutput_dir: $RUN\nseed: 3\n"
      "roles: {student: {model: $GOLDENS/qwen3, world: {dp: 1, threads: 1}}}\n"
      "data:\n  train: [{path: $GOLDENS/rows.jsonl}]\n  max_length: 64\n"
      "train: {max_steps: 5, tokens_per_batch: 128, learning_rate: 1.0e-3, save_steps: 0}\n";
  const fs::path run = run_recipe_text(folder.path(), recipe);
  ASSERT_FALSE(HasFailure());
  const std::vector<double> losses = column(run, "loss"), tokens = column(run, "num_tokens");
  ASSERT_EQ(losses.size(), 5u);
  for (const double loss : losses)
    EXPECT_TRUE(std::isfinite(loss));
  double before = 0;
  for (const double total : tokens) {
    EXPECT_GT(total - before, 64) << "a batch of one row";
    EXPECT_LE(total - before, 128);
    before = total;
  }
  EXPECT_TRUE(fs::exists(run / "final/model.safetensors"));
}

}  // namespace
}  // namespace retort::test
