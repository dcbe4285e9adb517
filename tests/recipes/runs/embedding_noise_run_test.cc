// train.neftune_noise_alpha in whole runs: the same noise in every layout, and after a resume.
#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

const std::string kWorld = "roles.student.world.";

class EmbeddingNoiseRun : public testing::Test {
 protected:
  // The folder of a run of six steps, two micro-batches of two rows each.
  fs::path run(const std::string& name, std::vector<std::string> settings) {
    GoldenRecipe recipe;
    recipe.student = "llama";
    recipe.steps = 6;
    recipe.rows = 2;
    recipe.accumulation = 2;
    std::vector<std::string> args{"launch", write_recipe(folder_ / name, recipe).string()};
    args.insert(args.end(), settings.begin(), settings.end());
    const CommandResult result = retort(args);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return folder_ / name / "run";
  }
  static void expect_near(const fs::path& got, const fs::path& want, const std::string& key) {
    const std::vector<double> a = column(got, key), b = column(want, key);
    ASSERT_EQ(a.size(), b.size()) << key;
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_NEAR(a[i], b[i], 2e-5 * std::abs(b[i])) << key << " of row " << i;
  }

  TemporaryFolder folder_;
};

TEST_F(EmbeddingNoiseRun, IsTheSameInEveryLayout) {
  const std::string noise = "train.neftune_noise_alpha=5";
  const fs::path plain = run("plain", {}), one = run("one", {noise});
  EXPECT_GT(std::abs(column(one, "loss").front() - column(plain, "loss").front()), 1e-3);
  EXPECT_NE(column(run("seed", {noise, "seed=4"}), "loss").front(), column(one, "loss").front());

  const std::vector<std::pair<std::string, std::vector<std::string>>> layouts{
      {"dp", {kWorld + "dp=2", "train.gradient_accumulation_steps=1"}},
      {"tp", {kWorld + "tp=2"}},
      {"sp", {kWorld + "tp=2", kWorld + "sequence_parallel=true"}},
      {"pp", {kWorld + "pp=2"}},
      {"batch", {"train.per_device_train_batch_size=4", "train.gradient_accumulation_steps=1"}}};
  for (const auto& [name, settings] : layouts) {
    SCOPED_TRACE(name);
    std::vector<std::string> all{noise};
    all.insert(all.end(), settings.begin(), settings.end());
    const fs::path other = run(name, all);
    expect_near(other, one, "loss");
    expect_near(other, one, "grad_norm");
  }
}

TEST_F(EmbeddingNoiseRun, GoesOnAfterAResumeAndIsNoPartOfEvaluations) {
  const std::string noise = "train.neftune_noise_alpha=5";
  const fs::path data = goldens() / "rows.jsonl";
  const std::vector<std::string> evaluates{noise, "data.eval=[{path: " + data.string() + "}]",
                                           "train.eval_on_start=true", "train.eval_steps=3"};
  const fs::path whole = run("whole", evaluates);
  std::vector<std::string> without = evaluates;
  without.erase(without.begin());
  EXPECT_EQ(column(run("without", without), "eval_loss").front(),
            column(whole, "eval_loss").front());

  GoldenRecipe recipe;
  recipe.student = "llama";
  recipe.steps = 6;
  recipe.rows = 2;
  recipe.accumulation = 2;
  std::vector<std::string> args{"launch", write_recipe(folder_ / "parts", recipe).string(),
                                "train.exit_interval=3"};
  args.insert(args.end(), evaluates.begin(), evaluates.end());
  EXPECT_EQ(retort(args).exit_code, 4);
  args.push_back("--resume");
  const CommandResult rest = retort(args);
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(timeless_metrics(folder_ / "parts/run"), timeless_metrics(whole));
}

}  // namespace
}  // namespace retort::test
