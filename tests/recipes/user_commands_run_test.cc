// Programs of the user's beside whole runs: one that gets each checkpoint, one that gets the
// metrics. Whatever they do, the run is the same.
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "tests/recipes/run_support.h"

namespace retort::test {
namespace {

class UserCommands : public testing::Test {
 protected:
  CommandResult launch(const std::string& name, std::vector<std::string> settings) {
    GoldenRecipe recipe;
    recipe.dp = 2;
    recipe.rows = 2;
    const fs::path path = write_recipe(folder_ / name, recipe);
    std::vector<std::string> args{"launch", path.string(), "train.save_steps=2",
                                  "train.save_total_limit=1"};
    args.insert(args.end(), settings.begin(), settings.end());
    return retort(args);
  }
  fs::path run(const std::string& name) const { return folder_ / name / "run"; }
  // A program that runs this shell script.
  std::string script(const std::string& name, const std::string& text) {
    const fs::path path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    fs::permissions(path, fs::perms::owner_all);
    return path.string();
  }

  TemporaryFolder folder_;
};

TEST_F(UserCommands, EachCheckpointIsGivenAndFailuresChangeNothing) {
  ASSERT_EQ(launch("plain", {}).exit_code, 0);
  const std::string given = (folder_ / "given").string();
  // The checkpoint is whole when the program gets it.
  const std::string program =
      script("upload.sh", "basename $2 >> " + given +
                              "\ntest -f $2/state/COMPLETE -a $1 = s3 || exit 7\nexit 3");
  const CommandResult result = launch("told", {"train.checkpoint_command=[" + program + ", s3]"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const std::string got = read_file(given);
  EXPECT_TRUE(got.ends_with("checkpoint-5\n")) << got;
  const std::string log = read_file(run("told") / "logs/student-0.log");
  EXPECT_NE(log.find("checkpoint-5 failed: it exited with code 3"), std::string::npos) << log;
  EXPECT_EQ(timeless_metrics(run("told")), timeless_metrics(run("plain")));
  EXPECT_TRUE(read_file(run("told") / "final/model.safetensors") ==
              read_file(run("plain") / "final/model.safetensors"));

  const CommandResult missing =
      launch("missing", {"train.checkpoint_command=[no-such-program-of-retort]"});
  EXPECT_EQ(missing.exit_code, 2) << missing.output;
  EXPECT_NE(missing.output.find("there is no program 'no-such-program"), std::string::npos)
      << missing.output;
}

TEST_F(UserCommands, OneThatHangsIsKilledAndTold) {
  const std::string program = script("hang.sh", "sleep 600");
  const CommandResult result =
      launch("hung", {"train.checkpoint_command=[" + program + "]", "train.save_steps=0",
                      "train.checkpoint_command_timeout=1s"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(read_file(run("hung") / "logs/student-0.log").find("it was killed after 1s"),
            std::string::npos);
}

TEST_F(UserCommands, MetricsAreGivenLineByLine) {
  const std::string got = (folder_ / "got").string();
  const std::string program = script("track.sh", "cat >> $1; echo finished");
  const std::string setting = "launch.metrics_command=[" + program + ", " + got + "]";
  const CommandResult first = launch("told", {setting, "train.exit_interval=3"});
  ASSERT_EQ(first.exit_code, 4) << first.output;
  EXPECT_EQ(read_file(got), read_file(run("told") / "metrics.jsonl"));
  const CommandResult second = launch("told", {setting, "--resume"});
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_EQ(read_file(got), read_file(run("told") / "metrics.jsonl"));
  EXPECT_EQ(read_file(run("told") / "logs/metrics_command.log"), "finished\nfinished\n");
  EXPECT_EQ(second.output.find("launch.metrics_command"), std::string::npos) << second.output;
}

TEST_F(UserCommands, TheEndOfTheMetricsCommandIsToldAndEndsNothing) {
  const std::string program = script("dies.sh", "read line; echo bad key >&2; exit 9");
  const CommandResult result = launch("told", {"launch.metrics_command=[" + program + "]"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("exited with code 9"), std::string::npos) << result.output;
  EXPECT_EQ(read_file(run("told") / "logs/metrics_command.log"), "bad key\n");
  EXPECT_EQ(read_metrics(run("told")).size(), 5u);

  const CommandResult missing =
      launch("missing", {"launch.metrics_command=[no-such-program-of-retort]"});
  EXPECT_EQ(missing.exit_code, 2) << missing.output;
}

}  // namespace
}  // namespace retort::test
