// The options of the optimizer and of its schedule in whole runs, against torch's AdamW in the
// parameter groups and schedules of transformers: rates, losses, gradient norms and parameters.
#include <gtest/gtest.h>

#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

constexpr const char* kModel = "biased";

class OptionsRun : public testing::TestWithParam<std::string> {
 protected:
  static nlohmann::json golden() { return golden_cases("options").at(GetParam()); }
};

TEST_P(OptionsRun, MatchesTransformers) {
  TemporaryFolder folder;
  const fs::path run = run_recipe_text(folder.path(), golden().at("recipe"));
  ASSERT_FALSE(HasFailure());
  expect_columns(run, golden(), {"learning_rate", "loss", "grad_norm"}, 1e-9);
  expect_same_parameters(run, kModel, "options_changes", GetParam());
}

// A run in which one option is not what the recipe says ends elsewhere. Every option is so tested
// in some case: make_option_goldens.py.
TEST_P(OptionsRun, EndsElsewhereWithoutAnyOneOption) {
  const nlohmann::json want = golden();
  for (const std::string setting : want.at("others")) {
    TemporaryFolder folder;
    const fs::path run = run_recipe_text(folder.path(), want.at("recipe"), {setting});
    ASSERT_FALSE(HasFailure()) << setting;
    const ParameterError error = parameter_error(run, kModel, "options_changes", GetParam());
    EXPECT_GT(error.relative, 2e-5) << setting;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, OptionsRun, testing::Values("linear", "cosine", "constant"),
                         [](const auto& info) { return info.param; });

// What decays is a matter of names, which all layouts have.
class OptionsLayouts
    : public testing::TestWithParam<std::pair<const char*, std::vector<std::string>>> {};

TEST_P(OptionsLayouts, MatchTransformers) {
  TemporaryFolder folder;
  const nlohmann::json golden = golden_cases("options").at("linear");
  const fs::path run = run_recipe_text(folder.path(), golden.at("recipe"), GetParam().second);
  ASSERT_FALSE(HasFailure());
  expect_columns(run, golden, {"learning_rate", "loss", "grad_norm"}, 1e-9);
  expect_same_parameters(run, kModel, "options_changes", "linear");
}

const std::string kWorld = "roles.student.world.";
INSTANTIATE_TEST_SUITE_P(
    Splits, OptionsLayouts,
    testing::Values(std::pair("zero",
                              std::vector<std::string>{kWorld + "dp=2",
                                                       kWorld + "distributed_optimizer=true",
                                                       "train.gradient_accumulation_steps=1"}),
                    std::pair("tp", std::vector<std::string>{kWorld + "tp=2"}),
                    std::pair("pp", std::vector<std::string>{kWorld + "pp=2"})),
    [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace retort::test
