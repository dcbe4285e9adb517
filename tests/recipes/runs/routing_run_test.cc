// Several teachers: a weighted mixture of losses, and routing by a field of the sample. The loss
// that trains and its gradient are tested, not only the metric beside them.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

using Settings = std::vector<std::string>;

// A run with these `teachers:`: the role `teacher`, and with a model for it another, `second`.
fs::path run_teachers(const fs::path& folder, const GoldenRecipe& recipe,
                      const std::string& teachers, const std::string& second,
                      Settings settings = {}) {
  const fs::path path = write_recipe(folder, recipe);
  std::string text = read_file(path);
  if (!second.empty())
    text.insert(text.find("data:\n"), "  second:\n    model: " + (goldens() / second).string() +
                                          "\n    world: {threads: 1}\n");
  const std::string plain = "[{role: teacher}]";
  text.replace(text.find(plain), plain.size(), teachers);
  std::ofstream(path) << text;

  settings.insert(settings.begin(), {"launch", path.string()});
  const CommandResult result = retort(settings);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return folder / "run";
}

// The first step. The role `teacher` holds the model `first`, `second` that of the llama student.
struct Step {
  double loss = 0, kd = 0, ce = 0, grad_norm = 0;
};
class SeveralTeachers : public testing::Test {
 protected:
  Step first_step(const std::string& teachers, const std::string& kd_ratio = "1.0",
                  const std::string& first = "teacher") {
    const GoldenRecipe recipe{
        .teacher = first, .steps = 1, .distill = {{"payload", "full"}, {"kd_ratio", kd_ratio}}};
    const bool two = teachers.find("second") != std::string::npos;
    const fs::path run =
        run_teachers(folder_ / std::to_string(runs_++), recipe, teachers, two ? "llama" : "");
    if (HasFailure()) return {};
    const auto value = [&](const char* key) { return column(run, key).at(0); };
    return {value("loss"), value("kd_loss"), value("ce_loss"), value("grad_norm")};
  }

  TemporaryFolder folder_;
  int runs_ = 0;
};

const std::string kAlone = "[{role: teacher}]";
const std::string kMixed = "[{role: teacher, weight: 0.25}, {role: second, weight: 0.75}]";

TEST_F(SeveralTeachers, TheLossIsAWeightedSum) {
  const Step a = first_step(kAlone);
  const Step b = first_step(kAlone, "1.0", "llama");
  const Step mixed = first_step(kMixed, "0.3");
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(std::abs(a.kd - b.kd), 1e-2) << "or the test shows nothing";
  const double kd = 0.25 * a.kd + 0.75 * b.kd;
  EXPECT_NEAR(mixed.kd, kd, 1e-5 * kd);
  EXPECT_NEAR(mixed.ce, a.ce, 1e-5 * a.ce);
  EXPECT_NEAR(mixed.loss, 0.7 * a.ce + 0.3 * kd, 1e-5 * mixed.loss);
}

// A gradient that is linear in the weights has a squared norm that is quadratic in them: three
// points say what the fourth is. Two of them have one teacher alone, whose gradient the golden runs
// hold against PyTorch's.
TEST_F(SeveralTeachers, TheGradientIsAWeightedSum) {
  const auto squared = [](const Step& step) { return step.grad_norm * step.grad_norm; };
  const double a = squared(first_step(kAlone, "0.6"));
  const double b = squared(first_step(kAlone, "0.6", "llama"));
  const double half =
      squared(first_step("[{role: teacher, weight: 0.5}, {role: second, weight: 0.5}]", "0.6"));
  const double mixed = squared(first_step(kMixed, "0.6"));
  ASSERT_FALSE(HasFailure());

  // |w A + (1 - w) B|^2 at 1/2 gives the product of A and B, which gives it at 1/4.
  const double product = 2 * half - (a + b) / 2;
  const double expected = a / 16 + b * 9 / 16 + product * 6 / 16;
  EXPECT_NEAR(mixed, expected, 1e-4 * expected);
  EXPECT_GT(std::abs(mixed - half), 2e-3 * half) << "or the test shows nothing";
}

TEST_F(SeveralTeachers, RoutedByField) {
  const Step routed =
      first_step("[{role: teacher, when: {domain: a}}, {role: second, when: {domain: b}}]");
  const Step swapped =
      first_step("[{role: teacher, when: {domain: b}}, {role: second, when: {domain: a}}]");
  const Step half = first_step("[{role: teacher, weight: 0.5}, {role: second, weight: 0.5}]");
  // Every row is seen by each teacher in exactly one of the two runs: the sums over rows add up.
  EXPECT_NEAR(routed.loss + swapped.loss, 2 * half.loss, 1e-4);
  EXPECT_NEAR(routed.kd + swapped.kd, 2 * half.kd, 1e-4);
  EXPECT_GT(std::abs(routed.loss - swapped.loss), 1e-3);
}

// Two roles that hold one model, with weights that sum to 1, teach what that model teaches alone:
// five steps against PyTorch, half of the loss cross-entropy, however student and teachers are cut.
class TeachersOfOneModel : public testing::TestWithParam<std::pair<const char*, Settings>> {};

TEST_P(TeachersOfOneModel, MatchPyTorch) {
  const nlohmann::json want = golden_cases("expected").at("forward_hidden_mix");
  GoldenRecipe recipe{.teacher = "teacher"};
  for (const auto& [key, value] : want.at("distill").items())
    recipe.distill[key] = value.is_string() ? value.get<std::string>() : value.dump();
  ASSERT_EQ(recipe.distill.at("kd_ratio"), "0.5");

  TemporaryFolder folder;
  const fs::path run = run_teachers(folder.path(), recipe, kMixed, "teacher", GetParam().second);
  ASSERT_FALSE(HasFailure());
  expect_close(column(run, "loss"), want.at("losses"), "loss");
  expect_close(column(run, "grad_norm"), want.at("grad_norms"), "grad_norm");
  expect_close(column(run, "kd_loss"), want.at("kd"), "kd_loss");
  expect_close(column(run, "ce_loss"), want.at("ce"), "ce_loss");
  expect_same_parameters(run, "qwen3", "changes", "forward_hidden_mix");
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TeachersOfOneModel,
    testing::Values(std::pair("one_rank", Settings{}),
                    std::pair("student_tp", Settings{"roles.student.world.tp=2"}),
                    std::pair("student_pp_teacher_tp",
                              Settings{"roles.student.world.pp=2", "roles.second.world.tp=2"})),
    [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace retort::test
