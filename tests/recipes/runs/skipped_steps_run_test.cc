// Whole runs that meet a step which is not finite: a word of the student's embedding that is NaN,
// and rows that have it; and runs that leave for good.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

constexpr int64_t kBadWord = 60;

// The golden llama, whose head is not tied to its embedding, with one word of this that is NaN.
fs::path write_student(const fs::path& folder) {
  fs::copy(goldens() / "llama", folder);
  std::string bytes = read_file(folder / "model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const auto header = nlohmann::json::parse(bytes.substr(sizeof header_bytes, header_bytes));
  const auto& embedding = header.at("model.embed_tokens.weight");

  const uint64_t row_bytes = embedding.at("shape").at(1).get<uint64_t>() * sizeof(float);
  const uint64_t begin = sizeof header_bytes + header_bytes +
                         embedding.at("data_offsets").at(0).get<uint64_t>() + kBadWord * row_bytes;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (uint64_t at = begin; at < begin + row_bytes; at += sizeof nan)
    std::memcpy(bytes.data() + at, &nan, sizeof nan);
  fs::permissions(folder / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << bytes;
  return folder;
}

// Four rows for each step; those of `bad` steps have the word in their third row.
fs::path write_rows(const fs::path& file, const std::vector<bool>& bad) {
  std::ofstream out(file);
  for (size_t step = 0; step < bad.size(); ++step)
    for (size_t row = 0; row < 4; ++row) {
      nlohmann::json ids;
      for (size_t i = 0; i < 6 + row; ++i)
        ids.push_back((step * 13 + row * 7 + i * 5) % 50);
      if (bad[step] && row == 2) ids[1] = kBadWord;
      out << nlohmann::json{{"input_ids", ids}}.dump() << "\n";
    }
  return file;
}

struct World {
  const char* name;
  std::vector<std::string> settings;
};

class SkippedSteps : public testing::TestWithParam<World> {
 protected:
  // Over all rows, in order; the rate follows the steps that are not skipped.
  CommandResult launch(const std::string& name, const fs::path& rows, size_t steps,
                       std::vector<std::string> settings) {
    GoldenRecipe recipe;
    recipe.steps = static_cast<int64_t>(steps);
    const fs::path path = write_recipe(folder_ / name, recipe);
    std::vector<std::string> args{"launch",
                                  path.string(),
                                  "roles.student.model=" + student_.string(),
                                  "data.train=[{path: " + rows.string() + "}]",
                                  "train.lr_scheduler_type=linear",
                                  "train.lr_decay_steps=5"};
    args.insert(args.end(), settings.begin(), settings.end());
    args.insert(args.end(), GetParam().settings.begin(), GetParam().settings.end());
    return retort(args);
  }

  TemporaryFolder folder_;
  fs::path student_ = write_student(folder_ / "student");
};

TEST_P(SkippedSteps, LeaveNoTrace) {
  const fs::path rows = write_rows(folder_ / "rows.jsonl", {false, true, true, false, true, false});
  const CommandResult skipping =
      launch("skipping", rows, 6, {"train.skip_nonfinite_steps=2", "train.exit_interval=4"});
  ASSERT_EQ(skipping.exit_code, 4) << skipping.output;
  const fs::path run = folder_ / "skipping/run";
  EXPECT_NE(read_file(run / "logs/student-0.log").find("step 3 is skipped"), std::string::npos);
  const CommandResult rest = launch(
      "skipping", rows, 6, {"train.skip_nonfinite_steps=2", "train.exit_interval=4", "--resume"});
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(column(run, "skipped_steps"), (std::vector<double>{0, 1, 2, 2, 3, 3}));
  EXPECT_TRUE(read_metrics(run).at(1).at("loss").is_null());

  // The same rows without theirs.
  std::istringstream lines(read_file(rows));
  size_t number = 0;
  std::string text;
  for (std::string line; std::getline(lines, line); ++number)
    if (const size_t step = number / 4; step == 0 || step == 3 || step == 5) text += line + "\n";
  write_file_atomically(folder_ / "good.jsonl", text);
  const CommandResult without = launch("without", folder_ / "good.jsonl", 3, {});
  ASSERT_EQ(without.exit_code, 0) << without.output;
  for (const char* file : {"model.safetensors", "state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(run / "final" / file) == read_file(folder_ / "without/run/final" / file))
        << file;
}

// All ranks end with the samples' names, none waits for another.
TEST_P(SkippedSteps, OneMoreInARowEndsTheRun) {
  const fs::path rows = write_rows(folder_ / "rows.jsonl", {false, true, true, false});
  for (const char* setting : {"train.skip_nonfinite_steps=1", "train.skip_nonfinite_steps=0"}) {
    const CommandResult result = launch(setting, rows, 4, {setting});
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_NE(result.output.find("the loss is"), std::string::npos) << result.output;
    // A rank sees its own parameters only.
    if (GetParam().settings.empty()) {
      EXPECT_NE(result.output.find("'model.embed_tokens.weight' holds"), std::string::npos)
          << "the samples are blamed: " << result.output;
    }
  }
}

const std::string kWorld = "roles.student.world.";
INSTANTIATE_TEST_SUITE_P(
    Worlds, SkippedSteps,
    testing::Values(World{"one", {}},
                    World{"zero",
                          {kWorld + "dp=2", kWorld + "distributed_optimizer=true",
                           "train.per_device_train_batch_size=2"}},
                    World{"tp", {kWorld + "tp=2"}}, World{"pp", {kWorld + "pp=2"}}),
    [](const auto& info) { return std::string(info.param.name); });

// At a learning rate of 100, which leaves nothing of a model.
TEST(Divergence, IsToldAndEndsARunThatIsToStop) {
  const TemporaryFolder folder;
  const auto launch = [&](const std::string& name, std::vector<std::string> settings) {
    GoldenRecipe recipe;
    recipe.steps = 60;
    std::vector<std::string> args{"launch", write_recipe(folder / name, recipe).string(),
                                  "train.learning_rate=100", "train.skip_nonfinite_steps=100"};
    args.insert(args.end(), settings.begin(), settings.end());
    return retort(args);
  };

  const CommandResult told = launch("told", {});
  EXPECT_EQ(told.exit_code, 0) << told.output;
  EXPECT_NE(told.output.find("warning: student/0: "), std::string::npos) << told.output;
  EXPECT_NE(told.output.find("\ndone, but "), std::string::npos) << told.output;
  const auto status = nlohmann::json::parse(read_file(folder / "told/run/status.json"));
  EXPECT_TRUE(status.at("warning").get<std::string>().starts_with("student/0: ")) << status;
  EXPECT_EQ(read_metrics(folder / "told/run").size(), 60u);

  const CommandResult stopped = launch("stopped", {"train.on_divergence=stop"});
  EXPECT_EQ(stopped.exit_code, 5) << stopped.output;
  EXPECT_NE(stopped.output.find("\nstopped, because "), std::string::npos) << stopped.output;
  const size_t steps = read_metrics(folder / "stopped/run").size();
  EXPECT_LT(steps, 45u);
  EXPECT_TRUE(fs::exists(folder / "stopped/run" / ("checkpoint-" + std::to_string(steps))));
  EXPECT_FALSE(fs::exists(folder / "stopped/run/final"));
}

}  // namespace
}  // namespace retort::test
