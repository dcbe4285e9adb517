// Whole runs that look for their best model, and end when none is better.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

class EarlyStopping : public testing::TestWithParam<std::string> {
 protected:
  // Twenty steps with a rate that is far too large, so that the loss of the evaluations falls and
  // rises; its checkpoints are more than are kept.
  CommandResult launch(const std::string& name, std::vector<std::string> settings) {
    GoldenRecipe recipe;
    recipe.steps = 20;
    recipe.student_world = GetParam();
    recipe.dp = GetParam().empty() ? 2 : 1;
    recipe.rows = GetParam().empty() ? 2 : 4;
    const fs::path path = write_recipe(folder_ / name, recipe);
    std::vector<std::string> args{"launch",
                                  path.string(),
                                  "data.eval=[{path: " + (goldens() / "rows.jsonl").string() + "}]",
                                  "train.learning_rate=0.2",
                                  "train.eval_steps=1",
                                  "train.save_steps=2",
                                  "train.save_total_limit=2",
                                  "train.metric_for_best_model=eval_loss",
                                  "train.early_stopping_patience=4"};
    args.insert(args.end(), settings.begin(), settings.end());
    return retort(args);
  }
  fs::path run(const std::string& name) const { return folder_ / name / "run"; }
  static size_t num_checkpoints(const fs::path& run) {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(run))
      count += entry.path().filename().string().starts_with("checkpoint-");
    return count;
  }

  TemporaryFolder folder_;
};

// The end is a normal one; the best checkpoint is there, however old; a run in pieces is the same.
TEST_P(EarlyStopping, EndsNormallyAndKeepsTheBest) {
  const CommandResult whole = launch("whole", {"train.eval_on_start=true"});
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const std::vector<double> losses = column(run("whole"), "eval_loss");  // the first is of step 0
  ASSERT_LT(losses.size(), 21u) << "the run did not end early";
  const auto best = std::min_element(losses.begin() + 1, losses.end());
  const auto best_step = best - losses.begin();
  EXPECT_EQ(std::ssize(losses) - 1, best_step + 4);
  EXPECT_EQ(fs::read_symlink(run("whole") / "best"), "checkpoint-" + std::to_string(best_step));
  EXPECT_TRUE(fs::exists(run("whole") / "best/model.safetensors"));
  EXPECT_EQ(fs::read_symlink(run("whole") / "final"),
            "checkpoint-" + std::to_string(losses.size() - 1));
  EXPECT_LE(num_checkpoints(run("whole")), 3u);
  EXPECT_NE(read_file(run("whole") / "logs/student-0.log").find("eval_loss has not improved in 4"),
            std::string::npos);

  // The same run, stopped after every third step.
  CommandResult part = launch("parts", {"train.eval_on_start=true", "train.exit_interval=3"});
  int starts = 1;
  for (; part.exit_code == 4; ++starts)
    part = launch("parts", {"train.eval_on_start=true", "train.exit_interval=3", "--resume"});
  ASSERT_EQ(part.exit_code, 0) << part.output;
  EXPECT_GT(starts, 1);
  EXPECT_EQ(timeless_metrics(run("parts")), timeless_metrics(run("whole")));
  for (const char* file :
       {"final/model.safetensors", "final/state/optimizer.safetensors", "final/state/loop.json",
        "best/model.safetensors", "best/state/loop.json"})
    EXPECT_TRUE(read_file(run("parts") / file) == read_file(run("whole") / file)) << file;

  // A run that has ended does nothing more, and another metric is refused.
  const CommandResult again = launch("whole", {"train.eval_on_start=true", "--resume"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(column(run("whole"), "eval_loss"), losses);
  const CommandResult other = launch(
      "whole", {"--resume", "train.metric_for_best_model=eval_entropy", "train.max_steps=30"});
  EXPECT_EQ(other.exit_code, 2) << other.output;
  EXPECT_NE(other.output.find("must keep train.metric_for_best_model"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Worlds, EarlyStopping, testing::Values("", ", tp: 2"),
                         [](const auto& info) { return info.index == 0 ? "dp" : "tp"; });

}  // namespace
}  // namespace retort::test
