// Whole kto runs against a single-process loop around TRL's own KTOTrainer methods: 5 AdamW steps,
// metrics and parameters; then layouts, evaluation, what `retort audit` and `retort check` say.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

// Differences of log-probabilities of whole completions (some -40) in float32.
constexpr double kAbsolute = 3e-6;

// Everything that the golden lists.
void expect_golden(const fs::path& run, const std::string& name) {
  const nlohmann::json golden = golden_cases("kto").at(name);
  for (const auto& [key, value] : golden.items())
    if (key != "recipe") expect_columns(run, golden, {key}, kAbsolute);
  expect_same_parameters(run, "qwen3", "kto_changes", name);
}

fs::path run_case(const TemporaryFolder& folder, const std::string& name,
                  const std::vector<std::string>& settings = {}) {
  return run_recipe_text(folder.path(), golden_cases("kto").at(name).at("recipe"), settings);
}

class KtoRun : public testing::TestWithParam<std::string> {};

TEST_P(KtoRun, MatchesTrl) {
  TemporaryFolder folder;
  const fs::path run = run_case(folder, GetParam());
  ASSERT_FALSE(HasFailure());
  expect_golden(run, GetParam());
  EXPECT_EQ(column(run, "kl").empty(), GetParam() == "apo_zero_unpaired");
}

INSTANTIATE_TEST_SUITE_P(Cases, KtoRun,
                         testing::Values("kto", "weights", "cut", "apo_zero_unpaired"),
                         [](const auto& info) { return info.param; });

TEST(KtoRunCounts, ALabelWithoutRowsHasNoMetrics) {
  TemporaryFolder folder;
  const fs::path run = run_case(folder, "kto");
  ASSERT_FALSE(HasFailure());
  const std::vector<double> desirable = column(run, "num_desirable");
  const std::vector<double> undesirable = column(run, "num_undesirable");
  ASSERT_EQ(desirable.size(), 5u);
  for (size_t step = 0; step < 5; ++step)
    EXPECT_EQ(desirable[step] + undesirable[step], 4) << step;
  EXPECT_EQ(desirable[2], 0);
  EXPECT_EQ(read_metrics(run).at(2).count("rewards/chosen"), 0u);
  EXPECT_EQ(read_metrics(run).at(2).count("rewards/margins"), 0u);
}

// The same numbers with student and reference each on ranks of their own. The mismatched
// completions and z are those of the global batch: TRL takes each micro-batch of a rank by itself.
class KtoLayouts : public testing::TestWithParam<std::pair<const char*, std::vector<std::string>>> {
};

TEST_P(KtoLayouts, MatchTrl) {
  for (const std::string name : {"kto", "weights"}) {
    SCOPED_TRACE(name);
    TemporaryFolder folder;
    const fs::path run = run_case(folder, name, GetParam().second);
    ASSERT_FALSE(HasFailure());
    expect_golden(run, name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Splits, KtoLayouts,
    testing::Values(
        std::pair("student_tp_reference_pp",
                  std::vector<std::string>{"roles.student.world.tp=2",
                                           "roles.reference.world.pp=2"}),
        std::pair("student_pp_dp_reference_tp",
                  std::vector<std::string>{"roles.student.world.pp=2", "roles.student.world.dp=2",
                                           "train.gradient_accumulation_steps=1",
                                           "train.per_device_train_batch_size=2",
                                           "roles.reference.world.tp=2"}),
        std::pair("single_rows", std::vector<std::string>{"roles.student.world.dp=2",
                                                          "train.gradient_accumulation_steps=2",
                                                          "train.per_device_train_batch_size=1"})),
    [](const auto& info) { return std::string(info.param.first); });

// The last batch of the epoch has two rows for three ranks.
TEST(KtoRunBatches, ARankWithoutRowsTakesPart) {
  const std::vector<std::string> steps{"train.max_steps=4", "train.gradient_accumulation_steps=1"};
  std::vector<std::string> alone = steps;
  alone.push_back("train.per_device_train_batch_size=6");
  std::vector<std::string> three = steps;
  three.push_back("train.per_device_train_batch_size=2");
  three.push_back("roles.student.world.dp=3");
  TemporaryFolder one, two;
  const fs::path whole = run_case(one, "kto", alone);
  const fs::path split = run_case(two, "kto", three);
  ASSERT_FALSE(HasFailure());
  for (const char* key : {"loss", "grad_norm", "kl", "logps/rejected"})
    expect_close(column(split, key), column(whole, key), key, kAbsolute);
  EXPECT_EQ(column(split, "num_desirable").at(3) + column(split, "num_undesirable").at(3), 2);
}

// The comparisons can fail: another pairing of prompts and completions is far outside the
// tolerances, and so is 5% of beta.
TEST(KtoRunDetects, MismatchesOfHalfTheBatch) {
  TemporaryFolder folder;
  // Two rows a step instead of four: TRL's numbers, had it accumulated over them.
  const fs::path run =
      run_case(folder, "kto", {"train.per_device_train_batch_size=2", "train.max_steps=2"});
  ASSERT_FALSE(HasFailure());
  const nlohmann::json golden = golden_cases("kto").at("kto");
  const std::vector<double> kl = column(run, "kl");
  const double of_halves = (kl.at(0) + kl.at(1)) / 2;
  EXPECT_GT(std::abs(of_halves - golden.at("kl")[0].get<double>()), 1e-2);
}

TEST(KtoRunDetects, AnotherBeta) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("kto").at("kto");
  const fs::path run = run_case(folder, "kto", {"kto.beta=0.105"});
  ASSERT_FALSE(HasFailure());
  const double got = column(run, "loss").at(0), want = golden.at("loss")[0];
  EXPECT_GT(std::abs(got - want), 1e-4 * want);
  EXPECT_GT(parameter_error(run, "qwen3", "kto_changes", "kto").relative, 1e-4);
}

// z is that of the whole evaluation set, and every row is counted once.
TEST(KtoRunEvaluates, AlikeInEveryLayout) {
  const std::string eval = "data.eval=[{path: " + (goldens() / "labels.jsonl").string() + "}]";
  TemporaryFolder one, two;
  const fs::path whole = run_case(one, "kto", {eval});
  const fs::path split = run_case(two, "kto",
                                  {eval, "roles.student.world.dp=2", "roles.student.world.pp=2",
                                   "train.per_device_train_batch_size=2"});
  ASSERT_FALSE(HasFailure());
  for (const char* key : {"eval_loss", "eval_kl", "eval_rewards/chosen", "eval_rewards/margins",
                          "eval_logps/rejected", "eval_logits/chosen"}) {
    const std::vector<double> want = column(whole, key);
    ASSERT_EQ(want.size(), 1u) << key;
    expect_close(column(split, key), want, key, 1e-5);
  }
  const double rows =
      column(split, "eval_num_desirable").at(0) + column(split, "eval_num_undesirable").at(0);
  EXPECT_EQ(rows, 20);
}

// A row of a batch by tokens counts its own completion, and the run sees every row of an epoch.
TEST(KtoRunBatches, ByTokens) {
  TemporaryFolder folder;
  std::string recipe = golden_cases("kto").at("kto").at("recipe");
  const std::string rows = "per_device_train_batch_size: 4";
  ASSERT_NE(recipe.find(rows), std::string::npos);
  recipe.replace(recipe.find(rows), rows.size(), "tokens_per_batch: 128");
  const std::string steps = "max_steps: 5";
  recipe.replace(recipe.find(steps), steps.size(), "num_train_epochs: 1");
  const fs::path run = run_recipe_text(folder.path(), recipe, {"roles.student.world.dp=2"});
  ASSERT_FALSE(HasFailure());
  double seen = 0;
  for (const char* key : {"num_desirable", "num_undesirable"})
    for (const double count : column(run, key))
      seen += count;
  EXPECT_EQ(seen, 20);
}

fs::path write_case(const TemporaryFolder& folder) {
  std::string recipe = golden_cases("kto").at("kto").at("recipe");
  for (const auto& [what, with] : std::vector<std::pair<std::string, std::string>>{
           {"$GOLDENS", goldens().string()}, {"$RUN", (folder / "run").string()}})
    for (size_t at = recipe.find(what); at != std::string::npos; at = recipe.find(what, at))
      recipe.replace(at, what.size(), with);
  std::ofstream(folder / "recipe.yaml") << recipe;
  return folder / "recipe.yaml";
}

TEST(KtoCommands, CheckPasses) {
  TemporaryFolder folder;
  for (const char* loss : {"kto", "apo_zero_unpaired"}) {
    const CommandResult result =
        retort({"check", write_case(folder).string(), "kto.loss_type=" + std::string(loss),
                "kto.undesirable_weight=0.75"});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("all checks passed"), std::string::npos) << result.output;
  }
}

TEST(KtoCommands, AuditCountsTheLabels) {
  TemporaryFolder folder;
  const CommandResult result =
      retort({"audit", write_case(folder).string(), "kto.undesirable_weight=2.0"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("labels.jsonl:1: desirable, prompt 1 tokens, completion 6"),
            std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("--- all: 20 rows, 10 desirable, 10 undesirable"), std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("undesirable rows = 0.50 (advised: 1 to 1.33)"), std::string::npos)
      << result.output;
}

}  // namespace
}  // namespace retort::test
