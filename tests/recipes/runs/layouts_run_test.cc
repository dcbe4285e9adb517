// The same global batch by one process, by two data-parallel processes and by accumulation gives
// the same run.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

class Layouts : public testing::TestWithParam<bool> {};

TEST_P(Layouts, GiveTheSameRun) {
  TemporaryFolder folder;
  GoldenRecipe one;
  if (GetParam()) {
    one.teacher = "teacher";
    one.distill = {{"payload", "hidden_states"}, {"loss_type", "jsd"}, {"kd_ratio", "0.7"}};
  }
  GoldenRecipe two = one, accumulated = one, both = one;
  two.dp = 2, two.rows = 2;
  accumulated.accumulation = 2, accumulated.rows = 2;
  both.dp = 2, both.rows = 1, both.accumulation = 2, both.teacher_replicas = 2;
  const std::vector<std::pair<std::string, GoldenRecipe>> runs{
      {"one", one}, {"dp2", two}, {"accumulated", accumulated}, {"both", both}};
  for (const auto& [name, recipe] : runs) {
    const auto result = retort({"launch", write_recipe(folder / name, recipe).string()});
    ASSERT_EQ(result.exit_code, 0) << name << "\n" << result.output;
  }
  const auto loss = column(folder / "one/run", "loss"),
             norm = column(folder / "one/run", "grad_norm");
  ASSERT_EQ(loss.size(), 5u);
  for (const auto& [name, recipe] : runs) {
    const auto other = column(fs::path(folder / name) / "run", "loss"),
               other_norm = column(fs::path(folder / name) / "run", "grad_norm");
    ASSERT_EQ(other.size(), loss.size()) << name;
    for (size_t i = 0; i < loss.size(); ++i) {
      EXPECT_NEAR(other[i], loss[i], 1e-5 * loss[i]) << name << " step " << i + 1;
      EXPECT_NEAR(other_norm[i], norm[i], 1e-5 * norm[i]) << name << " step " << i + 1;
    }
    EXPECT_EQ(column(fs::path(folder / name) / "run", "num_tokens"),
              column(folder / "one/run", "num_tokens"))
        << name;
    EXPECT_LE(relative_difference(fs::path(folder / name) / "run/final", folder / "one/run/final"),
              1e-5)
        << name;
  }
}

// Of a step and of both ranks of the student.
void expect_counted_calls(const fs::path& run, int64_t steps) {
  const std::string forward = "rpc/teacher/teacher.forward/";
  const std::vector<double> calls = column(run, forward + "calls");
  EXPECT_EQ(std::accumulate(calls.begin(), calls.end(), 0.0), static_cast<double>(2 * steps));
  for (const double errors : column(run, forward + "errors"))
    EXPECT_EQ(errors, 0);
  for (const double bytes : column(run, forward + "bytes_received"))
    EXPECT_GT(bytes, 0);
  for (const double seconds : column(run, forward + "handler_p50"))
    EXPECT_GT(seconds, 0);
  const std::vector<nlohmann::json> rows = read_metrics(run);
  EXPECT_EQ(rows.at(0).at("rpc/teacher/teacher.info/calls"), 2);
  EXPECT_FALSE(rows.back().contains("rpc/teacher/teacher.info/calls")) << "it was called once";
}

// Two ranks with two requests in flight each: what waits together is computed together.
TEST(DynamicBatching, GivesTheNumbersOfAsSent) {
  for (const std::string payload : {"hidden_states", "topk", "full"}) {
    TemporaryFolder folder;
    GoldenRecipe as_sent{
        .teacher = "teacher", .dp = 2, .rows = 2, .distill = {{"payload", payload}}};
    GoldenRecipe dynamic = as_sent;
    dynamic.teacher_extra = "\n    batching: dynamic";
    ASSERT_EQ(retort({"launch", write_recipe(folder / "as_sent", as_sent).string()}).exit_code, 0);
    const auto result = retort({"launch", write_recipe(folder / "dynamic", dynamic).string()});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    expect_counted_calls(folder / "dynamic/run", dynamic.steps);
    for (const std::string name : {"loss", "grad_norm"}) {
      const auto expected = column(folder / "as_sent/run", name),
                 got = column(folder / "dynamic/run", name);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], expected[i], 1e-5 * expected[i]) << payload << " " << name;
    }
    EXPECT_LE(relative_difference(folder / "dynamic/run/final", folder / "as_sent/run/final"), 1e-5)
        << payload;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Layouts, testing::Bool(),
                         [](const auto& info) { return info.param ? "distill" : "sft"; });

}  // namespace
}  // namespace retort::test
