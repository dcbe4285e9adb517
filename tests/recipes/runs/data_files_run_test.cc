// The same rows in files of other kinds: runs are the same to their last bit.
#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"
#include "tests/support/source_folder.h"

namespace retort::test {
namespace {

fs::path table(const std::string& name) { return source_folder() / "tests/data/tables" / name; }

class DataFiles : public testing::Test {
 protected:
  CommandResult launch(const std::string& name, const fs::path& data,
                       const std::vector<std::string>& settings = {}) {
    GoldenRecipe recipe;
    recipe.dp = 2;
    recipe.rows = 2;
    const fs::path path = write_recipe(folder_ / name, recipe);
    std::vector<std::string> args{"launch", path.string(),
                                  "data.train=[{path: '" + data.string() + "'}]",
                                  "data.shuffle=true"};
    args.insert(args.end(), settings.begin(), settings.end());
    return retort(args);
  }
  fs::path run(const std::string& name) const { return folder_ / name / "run"; }

  TemporaryFolder folder_;
};

TEST_F(DataFiles, OfAllKindsGiveTheSameBits) {
  const CommandResult lines = launch("lines", goldens() / "rows.jsonl");
  ASSERT_EQ(lines.exit_code, 0) << lines.output;
  const fs::path folder = folder_ / "folder";
  fs::create_directories(folder);
  for (const char* name : {"training-0.parquet", "training-1.parquet"})
    fs::copy(table(name), folder / name);
  write_file_atomically(folder / "README.md", "not rows");

  const std::pair<const char*, fs::path> kinds[] = {{"pattern", table("training-*.parquet")},
                                                    {"folder", folder},
                                                    {"stream", table("training.arrow")}};
  for (const auto& [name, data] : kinds) {
    const CommandResult result = launch(name, data);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(timeless_metrics(run(name)), timeless_metrics(run("lines"))) << name;
    for (const char* file : {"model.safetensors", "state/optimizer.safetensors"})
      EXPECT_TRUE(read_file(run(name) / "final" / file) == read_file(run("lines") / "final" / file))
          << name << ", " << file;
  }
  const CommandResult half = launch("half", table("training-0.parquet"));
  EXPECT_NE(timeless_metrics(run("half")), timeless_metrics(run("lines"))) << "other rows show";
}

// The first run makes the file of tokens, with two ranks at once; the next one reads it.
TEST_F(DataFiles, TokensThatAreKeptGiveTheSameBits) {
  const std::string setting = "data.tokenized_cache=" + (folder_ / "tokens").string();
  const std::string eval = "data.eval=[{path: " + (goldens() / "rows.jsonl").string() + "}]";
  const CommandResult plain = launch("plain", goldens() / "rows.jsonl", {eval});
  ASSERT_EQ(plain.exit_code, 0) << plain.output;
  fs::file_time_type made;
  for (const char* name : {"first", "second"}) {
    const CommandResult result = launch(name, goldens() / "rows.jsonl", {eval, setting});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(timeless_metrics(run(name)), timeless_metrics(run("plain"))) << name;
    EXPECT_TRUE(read_file(run(name) / "final/model.safetensors") ==
                read_file(run("plain") / "final/model.safetensors"))
        << name;

    // One file: the evaluation's rows are the same ones.
    ASSERT_EQ(std::distance(fs::directory_iterator(folder_ / "tokens"), {}), 1);
    const fs::path file = *fs::directory_iterator(folder_ / "tokens");
    if (name == std::string("second")) {
      EXPECT_EQ(fs::last_write_time(file), made) << "tokenised twice";
    }
    made = fs::last_write_time(file);
  }
}

TEST_F(DataFiles, WrongOnesAreRefusedByName) {
  const std::string whole = read_file(table("training-0.parquet"));
  const fs::path cut = folder_.write("cut.parquet", whole.substr(0, whole.size() / 2));
  const CommandResult damaged = launch("cut", cut);
  EXPECT_EQ(damaged.exit_code, 2) << damaged.output;
  EXPECT_NE(damaged.output.find(cut.string() + ": "), std::string::npos) << damaged.output;

  const CommandResult none = launch("none", folder_ / "*.jsonl");
  EXPECT_EQ(none.exit_code, 2) << none.output;
  EXPECT_NE(none.output.find("data.train.0.path: "), std::string::npos) << none.output;
  EXPECT_NE(none.output.find("matches no file"), std::string::npos) << none.output;

  // A row is named by its file and number.
  const CommandResult row = launch("row", table("snappy.parquet"));
  EXPECT_EQ(row.exit_code, 2) << row.output;
  EXPECT_NE(row.output.find("snappy.parquet:"), std::string::npos) << row.output;
}

}  // namespace
}  // namespace retort::test
