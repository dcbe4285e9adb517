// Whole dpo runs against a single-process loop around TRL's own losses: 5 AdamW steps, metrics and
// parameters.
#include <gtest/gtest.h>

#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

class PreferenceRun : public testing::TestWithParam<std::string> {};

TEST_P(PreferenceRun, MatchesTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("preference").at(GetParam());
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"));
  ASSERT_FALSE(HasFailure());
  expect_columns(run, golden,
                 {"loss", "grad_norm", "rewards/accuracies", "logps/chosen", "logps/rejected"},
                 1e-6);
  // Differences of log-probabilities of about 36, whose last bit is worth 4e-6.
  expect_columns(run, golden, {"rewards/chosen", "rewards/rejected", "rewards/margins"}, 4e-6);
  expect_same_parameters(run, "qwen3", "preference_changes", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, PreferenceRun,
                         testing::Values("sigmoid", "sigmoid_sft", "ipo", "simpo", "orpo",
                                         "apo_zero", "robust", "exo_pair", "nca_pair", "bco_pair",
                                         "sppo_hard", "aot", "aot_unpaired", "discopop"),
                         [](const auto& info) { return info.param; });

// Four pairs a step, whichever ranks have them; aot's are sorted over all four.
class PreferenceRanks : public testing::TestWithParam<std::string> {};

TEST_P(PreferenceRanks, MatchTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("preference").at(GetParam());
  const fs::path run =
      run_recipe_text(folder.path(), golden.at("recipe"),
                      {"roles.student.world.dp=2", "train.per_device_train_batch_size=2",
                       "train.gradient_accumulation_steps=1"});
  ASSERT_FALSE(HasFailure());
  expect_columns(run, golden,
                 {"loss", "grad_norm", "rewards/margins", "logps/chosen", "logps/rejected"}, 1e-6);
  expect_same_parameters(run, "qwen3", "preference_changes", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, PreferenceRanks,
                         testing::Values("exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot",
                                         "aot_unpaired", "discopop"),
                         [](const auto& info) { return info.param; });

// The same numbers with student and reference each on ranks of their own.
struct Split {
  std::string name, golden;
  std::vector<std::string> settings;
};
class PreferenceLayouts : public testing::TestWithParam<Split> {};

TEST_P(PreferenceLayouts, MatchTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("preference").at(GetParam().golden);
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"), GetParam().settings);
  ASSERT_FALSE(HasFailure());
  expect_columns(run, golden,
                 {"loss", "grad_norm", "rewards/margins", "logps/chosen", "logps/rejected"}, 1e-6);
  expect_same_parameters(run, "qwen3", "preference_changes", GetParam().golden);
}

const std::vector<std::string> kTpAndPp{"roles.student.world.tp=2", "roles.reference.world.pp=2"};
const std::vector<std::string> kPpDpAndTp{"roles.student.world.pp=2", "roles.student.world.dp=2",
                                          "train.gradient_accumulation_steps=1",
                                          "roles.reference.world.tp=2"};

INSTANTIATE_TEST_SUITE_P(
    Splits, PreferenceLayouts,
    testing::Values(Split{"student_tp_reference_pp", "sigmoid_sft", kTpAndPp},
                    Split{"student_pp_dp_reference_tp", "sigmoid_sft", kPpDpAndTp},
                    Split{"aot_student_tp_reference_pp", "aot", kTpAndPp},
                    Split{"aot_unpaired_student_pp_dp_reference_tp", "aot_unpaired", kPpDpAndTp}),
    [](const auto& info) { return info.param.name; });

// The comparisons can fail: 1% of beta is far outside the tolerances.
TEST(PreferenceRunDetects, AnotherBeta) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("preference").at("sigmoid");
  std::string recipe = golden.at("recipe");
  const std::string beta = "\"beta\": 0.1";
  ASSERT_NE(recipe.find(beta), std::string::npos);
  recipe.replace(recipe.find(beta), beta.size(), "\"beta\": 0.101");
  const fs::path run = run_recipe_text(folder.path(), recipe);
  ASSERT_FALSE(HasFailure());
  const double got = column(run, "loss").at(0), want = golden.at("loss")[0];
  EXPECT_GT(std::abs(got - want), 1e-4 * want);
  const ParameterError error = parameter_error(run, "qwen3", "preference_changes", "sigmoid");
  EXPECT_GT(error.relative, 1e-4);
}

}  // namespace
}  // namespace retort::test
