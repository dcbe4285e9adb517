// Whole runs with and without `data.eval`: an evaluation changes no bit of what is trained.
#include <gtest/gtest.h>

#include <sstream>

#include "base/file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

// The run's metrics but those of its evaluations.
std::vector<nlohmann::json> trained(const fs::path& run) {
  std::vector<nlohmann::json> rows;
  std::istringstream lines(timeless_metrics(run));
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains("loss")) rows.push_back(row);
  }
  return rows;
}

// The same recipe without evaluations and with one after every step; the latter's folder.
fs::path expect_same_training(const fs::path& without, const fs::path& with, size_t evaluations) {
  for (const fs::path& recipe : {without, with}) {
    std::vector<std::string> args{"launch", recipe.string()};
    if (recipe == with) args.push_back("train.eval_steps=1");
    const CommandResult result = retort(args);
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  const fs::path plain = without.parent_path() / "run", evaluated = with.parent_path() / "run";
  EXPECT_EQ(trained(evaluated), trained(plain));
  for (const char* file : {"model.safetensors", "state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(evaluated / "final" / file) == read_file(plain / "final" / file)) << file;
  EXPECT_EQ(read_metrics(evaluated).size(), read_metrics(plain).size() + evaluations);
  return evaluated;
}

TEST(Evaluation, ChangesNothingOfSft) {
  TemporaryFolder folder;
  GoldenRecipe recipe;
  recipe.student_world = ", tp: 2";
  const fs::path without = write_recipe(folder / "without", recipe);
  const fs::path with = write_recipe(folder / "with", recipe);
  // `data:` is a block of its own there: its sources are extended.
  std::string text = read_file(with);
  const std::string train = "  train: [";
  text.insert(text.find(train), "  eval: [{path: " + (goldens() / "rows.jsonl").string() + "}]\n");
  write_file_atomically(with, text);
  expect_same_training(without, with, 5);
}

// The teacher is asked for the evaluation's rows as well; in another layout for parts of them.
TEST(Evaluation, ChangesNothingOfDistillationAndHasItsDivergence) {
  TemporaryFolder folder;
  const auto evaluated = [&](const std::string& name, GoldenRecipe recipe) {
    recipe.teacher = "teacher";
    const fs::path without = write_recipe(folder / (name + "-without"), recipe);
    const fs::path with = write_recipe(folder / (name + "-with"), recipe);
    std::string text = read_file(with);
    text.insert(text.find("  train: ["),
                "  eval: [{path: " + (goldens() / "rows.jsonl").string() + "}]\n");
    text.insert(text.find("  max_steps:"), "  metric_for_best_model: eval_kd_loss\n");
    write_file_atomically(with, text);
    return column(expect_same_training(without, with, 5), "eval_kd_loss");
  };
  const std::vector<double> one = evaluated("one", {});
  ASSERT_EQ(one.size(), 5u);
  EXPECT_LT(one.back(), one.front());
  const std::vector<double> split =
      evaluated("split", {.dp = 2, .rows = 2, .student_world = ", tp: 2"});
  ASSERT_EQ(split.size(), 5u);
  for (size_t i = 0; i < one.size(); ++i)
    EXPECT_NEAR(split[i], one[i], 1e-4 * one[i]) << i;
}

// A teacher that is paid for each answer is not asked about rows that train nothing.
TEST(Evaluation, AsksNoTeacherIfTheRecipeSaysSo) {
  TemporaryFolder folder;
  GoldenRecipe recipe;
  recipe.teacher = "teacher";
  const fs::path file = write_recipe(folder / "run", recipe);
  std::string text = read_file(file);
  text.insert(text.find("  train: ["),
              "  eval: [{path: " + (goldens() / "rows.jsonl").string() + "}]\n");
  write_file_atomically(file, text);

  // The teacher's calls of a step without an evaluation, and of the step after one.
  const auto calls = [&](const std::string& eval_kd_loss) {
    const CommandResult result = retort({"launch", file.string(), "--overwrite",
                                         "train.eval_steps=2", "train.max_steps=4", eval_kd_loss});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    double all = 0;
    for (const nlohmann::json& row : read_metrics(file.parent_path() / "run")) {
      all += row.value("rpc/teacher/teacher.forward/calls", 0.0);
      if (row.contains("eval_loss")) {
        EXPECT_EQ(row.contains("eval_kd_loss"), eval_kd_loss == "distill.eval_kd_loss=true");
      }
    }
    return all;
  };
  EXPECT_LT(calls("distill.eval_kd_loss=false"), calls("distill.eval_kd_loss=true"));
}

TEST(Evaluation, ChangesNothingOfDpo) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.recipe = "dpo",
                        .data = write_pairs(folder),
                        .reference = "teacher",
                        .rows = 4,
                        .block = {{"prefetch", "2"}}};
  const fs::path without = write_on_policy(folder / "without", recipe);
  recipe.data_extra = "  eval: [{path: " + recipe.data.string() + "}]\n";
  expect_same_training(without, write_on_policy(folder / "with", recipe), 4);
}

// Several completions of a prompt are drawn, the same ones in each evaluation of the same weights.
TEST(Evaluation, DrawsSeveralCompletionsForPassAtK) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.data = write_prompts(folder), .steps = 4};
  recipe.rewards = "[{type: regex, pattern: 'w7'}]";  // of few completions
  const fs::path without = write_on_policy(folder / "without", recipe);
  recipe.data_extra = "  eval: [{path: " + recipe.data.string() + "}]\n";
  recipe.generation.insert({"eval_num_generations", "4"});
  const fs::path run = expect_same_training(without, write_on_policy(folder / "with", recipe), 4);
  const auto one = column(run, "eval_pass@1"), two = column(run, "eval_pass@2"),
             four = column(run, "eval_pass@4");
  ASSERT_EQ(one.size(), 4u);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i], column(run, "eval_reward")[i]) << "a reward of 1 passes";
    EXPECT_LE(one[i], two[i]);
    EXPECT_LE(two[i], four[i]);
  }
  EXPECT_GT(four[0], one[0]);
}

// Weights lie behind, rounds are trained on twice, and the next is drawn meanwhile: an evaluation
// that pushed the weights of its step would move all of it.
TEST(Evaluation, ChangesNothingOfGrpo) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.data = write_prompts(folder), .steps = 8};
  const std::pair<const char*, const char*> settings[] = {{"1", "3"}, {"2", "5"}};
  for (const auto& [iterations, staleness] : settings) {
    const fs::path here = folder / iterations;
    recipe.block = {{"num_iterations", iterations}, {"max_staleness", staleness}};
    recipe.extra = std::string("weight_sync: {every_steps: ") +
                   (recipe.block.at("num_iterations") == "1" ? "3" : "4") + "}\n";
    recipe.data_extra = "";
    const fs::path without = write_on_policy(here / "without", recipe);
    recipe.data_extra = "  eval: [{path: " + recipe.data.string() + "}]\n";
    const fs::path run = expect_same_training(without, write_on_policy(here / "with", recipe), 8);

    // The weights of the last push, or of now where they are pushed anyway and at the end.
    const auto versions = column(run, "eval_weight_version");
    const std::vector<double> expected = recipe.block.at("num_iterations") == "1"
                                             ? std::vector<double>{1, 1, 4, 4, 4, 7, 7, 9}
                                             : std::vector<double>{1, 1, 1, 5, 5, 5, 5, 9};
    EXPECT_EQ(versions, expected);
  }
}

}  // namespace
}  // namespace retort::test
