// Bad rows in whole runs: all are named before the first step; one that only its tokens show ends a
// run in its middle, and is mended or left out there; and what a resumed run cannot go on with.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

// Windows of the order are of 1024 rows: these are three.
constexpr int64_t kRows = 2200;
constexpr int64_t kRowsOfStep = 100;

class MendedRows : public testing::Test {
 protected:
  // Row `i` (from 0) is good, has no targets, or is cut.
  void write_rows(const std::set<int64_t>& without_targets, const std::set<int64_t>& cut = {},
                  const std::set<int64_t>& others = {}) {
    std::ofstream out(rows_);
    for (int64_t row = 0; row < kRows; ++row) {
      nlohmann::json ids, labels;
      for (int64_t i = 0; i < 5 + row % 3; ++i) {
        ids.push_back((row * 7 + i * 5 + (others.contains(row) ? 1 : 0)) % 50);
        labels.push_back(without_targets.contains(row) ? nlohmann::json(-100) : ids.back());
      }
      const std::string text = nlohmann::json{{"input_ids", ids}, {"labels", labels}}.dump();
      out << (cut.contains(row) ? text.substr(0, 20) : text) << "\n";
    }
  }
  CommandResult launch(const std::string& name, const std::vector<std::string>& settings = {}) {
    GoldenRecipe recipe;
    recipe.rows = kRowsOfStep;
    recipe.steps = kRows / kRowsOfStep;
    const fs::path path = write_recipe(folder_ / name, recipe);
    std::vector<std::string> args{"launch", path.string(),
                                  "data.train=[{path: " + rows_.string() + "}]",
                                  "train.save_steps=7"};
    args.insert(args.end(), settings.begin(), settings.end());
    return retort(args);
  }
  fs::path run(const std::string& name) const { return folder_ / name / "run"; }
  void expect_same_run(const std::string& name, const std::string& whole) {
    EXPECT_EQ(timeless_metrics(run(name)), timeless_metrics(run(whole)));
    for (const char* file : {"model.safetensors", "state/optimizer.safetensors", "state/loop.json"})
      EXPECT_TRUE(read_file(run(name) / "final" / file) == read_file(run(whole) / "final" / file))
          << file;
  }
  // Row 2100 ends it once the last window is read, behind checkpoint-14.
  void run_into_bad_row(const std::string& name) {
    const CommandResult result = launch(name);
    EXPECT_EQ(result.exit_code, 2) << result.output;
    expect_said(result, "rows.jsonl:2101: no targets");
    ASSERT_TRUE(fs::exists(run(name) / "checkpoint-14"));
    ASSERT_GT(read_metrics(run(name)).size(), 14U);
  }
  // On the screen, or in the log of the run that it names.
  static void expect_said(const CommandResult& result, const std::string& text) {
    std::string said = result.output;
    const std::string begins = "sft -> ";
    if (const size_t at = said.find(begins); at != std::string::npos) {
      const size_t name = at + begins.size();
      const std::string run = said.substr(name, said.find('\n', name) - name);
      const fs::path log = fs::path(run) / "logs" / "student-0.log";
      if (fs::exists(log)) said += read_file(log);
    }
    EXPECT_NE(said.find(text), std::string::npos) << text << "\n" << said;
  }

  TemporaryFolder folder_;
  fs::path rows_ = folder_ / "rows.jsonl";
};

TEST_F(MendedRows, BadLinesAreAllNamedBeforeTheFirstStep) {
  write_rows({}, {9, 2099, 2150});
  const CommandResult result = launch("run");
  EXPECT_EQ(result.exit_code, 2) << result.output;
  expect_said(result, "3 of 2200 rows are bad");
  expect_said(result, "rows.jsonl:10, 2100, 2151");
  EXPECT_FALSE(fs::exists(run("run") / "metrics.jsonl") && !read_metrics(run("run")).empty());
  for (const char* command : {"audit", "check"}) {
    const CommandResult said = retort({command, (folder_ / "run/recipe.yaml").string(),
                                       "data.train=[{path: " + rows_.string() + "}]"});
    EXPECT_EQ(said.exit_code, 2) << command << "\n" << said.output;
    expect_said(said, "rows.jsonl:10, 2100, 2151");
  }

  const CommandResult skipping = launch("skipping", {"data.on_bad_sample=skip"});
  EXPECT_EQ(skipping.exit_code, 0) << skipping.output;
  expect_said(skipping, "3 of 2200 rows are bad and are left out");
}

TEST_F(MendedRows, ARunGoesOnWithTheBitsOfOneThatWasNotDisturbed) {
  write_rows({});
  ASSERT_EQ(launch("whole").exit_code, 0);
  write_rows({2100, 2180});
  run_into_bad_row("part");

  // Rows that were used must be as they were: those of the windows behind, and of the one begun.
  for (const int64_t used : {4, 1500, 2047}) {
    write_rows({}, {}, {used});
    const CommandResult refused = launch("part", {"--resume"});
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    expect_said(refused, "rows.jsonl:" + std::to_string(used + 1) + ": the run has used this row");
  }
  write_rows({});
  std::ofstream(rows_, std::ios::app) << "{\"input_ids\": [1, 2, 3]}\n";
  expect_said(launch("part", {"--resume"}), "has 2201 rows, and had 2200");

  write_rows({});
  const CommandResult resumed = launch("part", {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  expect_said(resumed, "2 of its 2200 rows changed");
  expect_same_run("part", "whole");
}

TEST_F(MendedRows, OrLeavesThemOutFromThereOn) {
  write_rows({2100, 2180});
  const CommandResult whole = launch("whole", {"data.on_bad_sample=skip"});
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  run_into_bad_row("part");
  const CommandResult resumed = launch("part", {"data.on_bad_sample=skip", "--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  expect_said(resumed, "data.on_bad_sample is skip from here on");
  expect_same_run("part", "whole");
}

// What the folder says of a run is what its checkpoints were trained with.
TEST_F(MendedRows, ARecipeThatChangedIsAppliedOrRefused) {
  write_rows({});
  ASSERT_EQ(launch("run", {"train.max_steps=7"}).exit_code, 0);
  const fs::path resolved = run("run") / "recipe.resolved.yaml";
  const std::string began = read_file(resolved);

  const std::vector<std::pair<std::string, std::string>> refused{
      {"roles.student.model=" + (goldens() / "llama").string(), "roles.student.model: "},
      {"seed=4", "seed: 3 -> 4"},
      {"data.shuffle=true", "data.shuffle: false -> true"},
      {"data.packing=true", "data.packing: false -> true"},
      {"data.max_length=48", "what shapes the training rows"}};
  for (const auto& [change, said] : refused) {
    const CommandResult result = launch("run", {"--resume", "train.max_steps=9", change});
    EXPECT_EQ(result.exit_code, 2) << result.output;
    expect_said(result, said);
    EXPECT_EQ(read_file(resolved), began) << change;
  }

  const CommandResult result =
      launch("run", {"--resume", "train.max_steps=9", "train.learning_rate=2.0e-3"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_said(result, "applied from here on: train.max_steps: 7 -> 9");
  expect_said(result, "applied from here on: train.learning_rate: ");
  EXPECT_NE(read_file(resolved).find("learning_rate: 0.002"), std::string::npos);
  EXPECT_EQ(column(run("run"), "learning_rate").back(), 2e-3);
}

}  // namespace
}  // namespace retort::test
