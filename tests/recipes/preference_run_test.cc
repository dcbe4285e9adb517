// Whole dpo runs against a single-process loop around TRL's own losses: 5 AdamW steps, metrics and
// parameters.
#include <gtest/gtest.h>

#include "tests/recipes/golden_support.h"

namespace retort::test {
namespace {

class PreferenceRun : public testing::TestWithParam<std::string> {};

TEST_P(PreferenceRun, MatchesTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("preference").at(GetParam());
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"));
  ASSERT_FALSE(HasFailure());
  expect_columns(run, golden,
                 {"loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/margins",
                  "rewards/accuracies", "logps/chosen", "logps/rejected"},
                 1e-6);
  expect_same_parameters(run, "qwen3", "preference_changes", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, PreferenceRun,
                         testing::Values("sigmoid", "sigmoid_sft", "ipo", "simpo", "orpo",
                                         "apo_zero", "robust"),
                         [](const auto& info) { return info.param; });

// The same numbers with student and reference each on ranks of their own.
class PreferenceLayouts
    : public testing::TestWithParam<std::pair<const char*, std::vector<std::string>>> {};

TEST_P(PreferenceLayouts, MatchTrl) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("preference").at("sigmoid_sft");
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"), GetParam().second);
  ASSERT_FALSE(HasFailure());
  expect_columns(run, golden,
                 {"loss", "grad_norm", "rewards/margins", "logps/chosen", "logps/rejected"}, 1e-6);
  expect_same_parameters(run, "qwen3", "preference_changes", "sigmoid_sft");
}

INSTANTIATE_TEST_SUITE_P(
    Splits, PreferenceLayouts,
    testing::Values(std::pair("student_tp_reference_pp",
                              std::vector<std::string>{"roles.student.world.tp=2",
                                                       "roles.reference.world.pp=2"}),
                    std::pair("student_pp_dp_reference_tp",
                              std::vector<std::string>{"roles.student.world.pp=2",
                                                       "roles.student.world.dp=2",
                                                       "train.gradient_accumulation_steps=1",
                                                       "roles.reference.world.tp=2"})),
    [](const auto& info) { return std::string(info.param.first); });

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
