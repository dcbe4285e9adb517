// Several teachers: a weighted mixture of losses, and routing by a field of the sample.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/recipes/run_support.h"

namespace retort::test {
namespace {

// kd_loss of the first step with these `teachers:`; roles a (the teacher) and b (the llama student
// as a second teacher).
double first_kd(const TemporaryFolder& folder, const std::string& name, const std::string& teachers,
                bool only_a = false) {
  GoldenRecipe recipe{.teacher = "teacher", .steps = 1, .distill = {{"payload", "full"}}};
  const fs::path path = write_recipe(folder / name, recipe);
  std::string text = read_file(path);
  const auto at = text.find("data:\n");
  if (!only_a)
    text.insert(at, "  second:\n    model: " + (goldens() / "llama").string() +
                        "\n    world: {threads: 1}\n");
  const std::string plain = "[{role: teacher}]";
  text.replace(text.find(plain), plain.size(), teachers);
  std::ofstream(path) << text;
  const auto result = retort({"launch", path.string()});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  if (result.exit_code != 0) return std::nan("");
  return column(fs::path(folder / name) / "run", "kd_loss").at(0);
}

TEST(SeveralTeachers, WeightedSumOfLosses) {
  TemporaryFolder folder;
  const double a = first_kd(folder, "a", "[{role: teacher}]", true);
  const double mixed =
      first_kd(folder, "mixed", "[{role: teacher, weight: 0.25}, {role: second, weight: 0.75}]");
  const double other =
      first_kd(folder, "other", "[{role: teacher, weight: 0.75}, {role: second, weight: 0.25}]");
  // mixed = a/4 + 3b/4 and other = 3a/4 + b/4, so b follows from each.
  EXPECT_NEAR((mixed - 0.25 * a) / 0.75, (other - 0.75 * a) / 0.25, 1e-4);
  EXPECT_GT(std::abs(mixed - other), 1e-3);
}

TEST(SeveralTeachers, RoutedByField) {
  TemporaryFolder folder;
  const double routed = first_kd(
      folder, "routed", "[{role: teacher, when: {domain: a}}, {role: second, when: {domain: b}}]");
  const double swapped = first_kd(
      folder, "swapped", "[{role: teacher, when: {domain: b}}, {role: second, when: {domain: a}}]");
  const double half =
      first_kd(folder, "half", "[{role: teacher, weight: 0.5}, {role: second, weight: 0.5}]");
  // Every row is seen by each teacher in exactly one of the two runs: the sums over rows add up.
  EXPECT_NEAR(routed + swapped, 2 * half, 1e-4);
  EXPECT_GT(std::abs(routed - swapped), 1e-3);
}

}  // namespace
}  // namespace retort::test
