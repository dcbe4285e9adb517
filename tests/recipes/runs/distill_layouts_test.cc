// Teachers of every layout teach students of every layout the same: loss, gradient norm and
// parameters of one process.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

constexpr double kTolerance = 1e-5;

// What one process gives, and what a layout gives; both of 5 steps of 4 rows.
class Runs {
 public:
  explicit Runs(GoldenRecipe one) : one_(std::move(one)) { run("one", one_); }

  void expect_equal(const std::string& name, const std::string& teacher_world,
                    const std::string& student_world, int64_t dp = 1, int64_t teacher_replicas = 1,
                    const std::string& teacher_extra = {}) {
    GoldenRecipe recipe = one_;
    recipe.teacher_world = teacher_world;
    recipe.student_world = student_world;
    recipe.dp = dp;
    recipe.rows = 4 / dp;
    recipe.teacher_replicas = teacher_replicas;
    recipe.teacher_extra += teacher_extra;
    run(name, recipe);
    if (testing::Test::HasFatalFailure()) return;
    for (const std::string key :
         {"loss", "grad_norm", "kd_loss", "ce_loss", "masked_mass", "teacher_mass"}) {
      const auto expected = column(folder_ / "one/run", key),
                 got = column(fs::path(folder_ / name) / "run", key);
      ASSERT_EQ(got.size(), 5u) << name << " " << key;
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], expected[i], kTolerance * std::max(std::abs(expected[i]), 1e-3))
            << name << " " << key << " step " << i + 1;
    }
    EXPECT_EQ(column(fs::path(folder_ / name) / "run", "num_tokens"),
              column(folder_ / "one/run", "num_tokens"))
        << name;
    EXPECT_LE(
        relative_difference(fs::path(folder_ / name) / "run/final", folder_ / "one/run/final"),
        kTolerance)
        << name;
  }

 private:
  void run(const std::string& name, const GoldenRecipe& recipe) {
    const auto result = retort({"launch", write_recipe(folder_ / name, recipe).string()});
    ASSERT_EQ(result.exit_code, 0) << name << "\n" << result.output;
  }
  TemporaryFolder folder_;
  GoldenRecipe one_;
};

// A teacher's layout, a student's and the payload between them: every two of the three meet in some
// run. RETORT_FULL_MATRIX=1 runs all layouts with each payload.
struct Layouts {
  std::string name, teacher_world, student_world;
  int64_t dp = 1, teacher_replicas = 1;
  std::set<std::string> payloads;
  std::string teacher_extra = {};
};

bool is_chosen(const Layouts& layouts, const std::string& payload) {
  return std::getenv("RETORT_FULL_MATRIX") != nullptr || layouts.payloads.contains(payload);
}

class DistillLayouts : public testing::TestWithParam<std::string> {
 protected:
  static void expect_same_run(const GoldenRecipe& one, const std::vector<Layouts>& all) {
    Runs runs(one);
    for (const Layouts& some : all) {
      if (HasFatalFailure()) return;
      if (is_chosen(some, GetParam()))
        runs.expect_equal(some.name, some.teacher_world, some.student_world, some.dp,
                          some.teacher_replicas, some.teacher_extra);
    }
  }
};

TEST_P(DistillLayouts, GiveTheSameRun) {
  GoldenRecipe one{
      .teacher = "teacher",
      .distill = {{"payload", GetParam()}, {"kd_ratio", "0.7"}, {"temperature", "1.5"}}};
  if (GetParam() != "topk") one.distill["loss_type"] = "jsd";
  expect_same_run(
      one, {{.name = "teacher1_tp2", .student_world = ", tp: 2", .payloads = {"hidden_states"}},
            {.name = "teacher1_pp2", .student_world = ", pp: 2", .payloads = {"topk", "full"}},
            {.name = "teacher2_one", .teacher_world = ", tp: 2", .payloads = {"full"}},
            {.name = "teacher2_tp2",
             .teacher_world = ", tp: 2",
             .student_world = ", tp: 2",
             .payloads = {"topk", "full"}},
            {.name = "teacher2_pp2",
             .teacher_world = ", tp: 2",
             .student_world = ", pp: 2",
             .payloads = {"hidden_states"}},
            {.name = "teacher2_dp2", .teacher_world = ", tp: 2", .dp = 2, .payloads = {"topk"}},
            {.name = "teacher2x2_tp2_dp2",
             .teacher_world = ", tp: 2",
             .student_world = ", tp: 2, sequence_parallel: true",
             .dp = 2,
             .teacher_replicas = 2,
             .payloads = {"hidden_states", "full"}}});
}

// Teachers of several stages, and vocabularies that neither fit each other nor their ranks.
TEST_P(DistillLayouts, GiveTheSameRunWithPaddedVocabularies) {
  GoldenRecipe one{.student = "padded",
                   .teacher = "padded_teacher",
                   .distill = {{"payload", GetParam()}, {"kd_ratio", "0.7"}}};
  one.distill["loss_type"] = GetParam() == "topk" ? "forward_kl" : "reverse_kl";
  expect_same_run(one, {{.name = "teacher_pp2",
                         .teacher_world = ", pp: 2",
                         .student_world = ", tp: 2",
                         .payloads = {"topk"}},
                        {.name = "teacher_tp2_pp2",
                         .teacher_world = ", tp: 2, pp: 2",
                         .student_world = ", tp: 2, pp: 2",
                         .payloads = {"hidden_states", "full"}},
                        {.name = "dynamic",
                         .teacher_world = ", tp: 2",
                         .student_world = ", tp: 2",
                         .dp = 2,
                         .payloads = {"hidden_states", "topk"},
                         .teacher_extra = "\n    batching: dynamic"}});
}

INSTANTIATE_TEST_SUITE_P(Payloads, DistillLayouts, testing::Values("hidden_states", "topk", "full"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace retort::test
