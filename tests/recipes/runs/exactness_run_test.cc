// The exact values that whole runs must give: teacher == student, and payloads that carry the same
// distribution.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

using Distill = std::map<std::string, std::string>;

// One step at the smallest possible rate: kd_loss of the first step belongs to the untouched
// student.
std::vector<nlohmann::json> run(const TemporaryFolder& folder, const std::string& name,
                                const std::string& teacher, const Distill& distill, int64_t steps) {
  GoldenRecipe recipe{.teacher = teacher, .steps = steps, .distill = distill};
  const auto result = retort({"launch", write_recipe(folder / name, recipe).string()});
  EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.output;
  if (result.exit_code != 0) return {};
  return read_metrics(fs::path(folder / name) / "run");
}

// Each loss with one payload, each payload with two losses; RETORT_FULL_MATRIX=1: all with all.
TEST(TeacherEqualsStudent, GivesZero) {
  TemporaryFolder folder;
  const std::vector<std::string> losses{"forward_kl", "reverse_kl",        "jsd",
                                        "skewed_kl",  "skewed_reverse_kl", "tvd"};
  const std::vector<Distill> payloads{
      {{"payload", "hidden_states"}},
      {{"payload", "full"}},
      {{"payload", "topk"}, {"loss_top_k", "8"}, {"tail", "bucket"}}};
  for (size_t i = 0; i < losses.size(); ++i) {
    for (size_t j = 0; j < payloads.size(); ++j) {
      if (i % payloads.size() != j && !std::getenv("RETORT_FULL_MATRIX")) continue;
      const std::string& loss = losses[i];
      Distill distill = payloads[j];
      distill["loss_type"] = loss;
      const std::string name = loss + "-" + distill["payload"];
      const auto rows = run(folder, name, "qwen3", distill, 1);
      ASSERT_FALSE(rows.empty());
      EXPECT_LT(std::abs(rows[0].at("kd_loss").get<double>()), 1e-6) << name;
    }
  }
}

TEST(TeacherEqualsStudent, TailsOfForwardKl) {
  TemporaryFolder folder;
  const auto drop =
      run(folder, "drop", "qwen3", {{"payload", "topk"}, {"loss_top_k", "8"}, {"tail", "drop"}}, 1);
  ASSERT_FALSE(drop.empty());
  EXPECT_LT(std::abs(drop[0].at("kd_loss").get<double>()), 1e-6);
  // With K = 1, renormalize is -log(teacher_mass) of each row; over the whole vocabulary it is 0.
  const auto all = run(folder, "all", "qwen3",
                       {{"payload", "topk"}, {"loss_top_k", "64"}, {"tail", "renormalize"}}, 1);
  ASSERT_FALSE(all.empty());
  EXPECT_LT(std::abs(all[0].at("kd_loss").get<double>()), 1e-6);
  EXPECT_NEAR(all[0].at("teacher_mass").get<double>(), 1.0, 1e-6);
  const auto some = run(folder, "some", "qwen3",
                        {{"payload", "topk"}, {"loss_top_k", "8"}, {"tail", "renormalize"}}, 1);
  ASSERT_FALSE(some.empty());
  const double mass = some[0].at("teacher_mass").get<double>(),
               loss = some[0].at("kd_loss").get<double>();
  EXPECT_LT(mass, 1.0);
  EXPECT_GE(loss, -std::log(mass) - 1e-6);  // Jensen: the mean of -log is at least -log of the mean
}

TEST(Payloads, OfTheSameDistributionGiveTheSameRun) {
  TemporaryFolder folder;
  const auto hidden = run(folder, "hidden", "teacher", {{"payload", "hidden_states"}}, 5);
  const auto full = run(folder, "full", "teacher", {{"payload", "full"}}, 5);
  const auto topk = run(folder, "topk", "teacher", {{"payload", "topk"}, {"loss_top_k", "64"}}, 5);
  ASSERT_EQ(hidden.size(), 5u);
  ASSERT_EQ(full.size(), 5u);
  ASSERT_EQ(topk.size(), 5u);
  for (const char* key : {"kd_loss", "grad_norm"}) {
    for (size_t i = 0; i < 5; ++i) {
      const double value = hidden[i].at(key).get<double>();
      EXPECT_NEAR(full[i].at(key).get<double>(), value, 1e-6 * value) << key << " step " << i + 1;
      EXPECT_NEAR(topk[i].at(key).get<double>(), value, 1e-6 * value) << key << " step " << i + 1;
    }
  }
}

}  // namespace
}  // namespace retort::test
