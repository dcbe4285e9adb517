// Programs of the user's beside whole runs: one that gets each checkpoint, one that gets the
// metrics. Whatever they do, the run is the same.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/file.h"
#include "tests/recipes/run_support/run_support.h"
#include "tests/support/process_state.h"
#include "tests/support/wait_until.h"

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

  // The value of a variable stands in a file of the run's folder that is the user's alone.
  static void expect_kept_secret(const fs::path& run, const std::string& value) {
    for (const auto& entry : fs::recursive_directory_iterator(run)) {
      if (!entry.is_regular_file()) continue;
      const bool holds_it = read_file(entry.path()).find(value) != std::string::npos;
      EXPECT_EQ(holds_it, entry.path().filename().string().ends_with("roles.env")) << entry.path();
      if (holds_it) {
        EXPECT_EQ(entry.status().permissions(), fs::perms::owner_read | fs::perms::owner_write);
      }
    }
  }

  // Of a shell script: ends with 9 where it holds a port, a connection or a lock of the run's.
  static constexpr const char* kNoneOfOurs =
      "ls -l /proc/$$/fd | grep -E 'socket:|anon_inode:|\\.lock|\\.driving' >&2 && exit 9\n";

  TemporaryFolder folder_;
};

TEST_F(UserCommands, EachCheckpointIsGivenAndFailuresChangeNothing) {
  ASSERT_EQ(launch("plain", {}).exit_code, 0);
  const std::string given = (folder_ / "given").string();
  // The checkpoint is whole when the program gets it.
  const std::string program =
      script("upload.sh", "basename $2 >> " + given +
                              "\ntest -f $2/state/COMPLETE -a $1 = s3 || exit 7\n" +
                              "test \"$MY_KEY\" = hf_4711 || exit 8\n" + kNoneOfOurs + "exit 3");
  const CommandResult result = launch("told", {"train.checkpoint_command=[" + program + ", s3]",
                                               "roles.student.env={MY_KEY: hf_4711}"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const std::string got = read_file(given);
  EXPECT_TRUE(got.ends_with("checkpoint-5\n")) << got;
  const std::string log = read_file(run("told") / "logs/student-0.log");
  EXPECT_NE(log.find("checkpoint-5 failed: it exited with code 3"), std::string::npos) << log;
  expect_kept_secret(run("told"), "hf_4711");
  EXPECT_NE(log.find("the role's environment has MY_KEY"), std::string::npos) << log;
  EXPECT_EQ(result.output.find("hf_4711"), std::string::npos) << result.output;
  EXPECT_EQ(timeless_metrics(run("told")), timeless_metrics(run("plain")));
  EXPECT_TRUE(read_file(run("told") / "final/model.safetensors") ==
              read_file(run("plain") / "final/model.safetensors"));

  const CommandResult missing =
      launch("missing", {"train.checkpoint_command=[no-such-program-of-retort]"});
  EXPECT_EQ(missing.exit_code, 2) << missing.output;
  EXPECT_NE(missing.output.find("there is no program 'no-such-program"), std::string::npos)
      << missing.output;
}

// With programs in the place of Slurm's: the job begins later, and takes them from the folder.
TEST_F(UserCommands, AJobThatIsSubmittedHasTheValuesOfVariables) {
  fs::create_directory(folder_ / "bin");
  script("bin/sbatch", "echo 17");
  script("bin/scontrol", "printf '\\nKillWait = 30 sec\\n'");
  const fs::path path = write_recipe(folder_ / "job", {});
  const auto with_slurm = [&](const fs::path& recipe, const std::vector<std::string>& more) {
    std::vector<std::string> argv{
        "/usr/bin/env",  "-u",
        "SLURM_JOB_ID",  "PATH=" + (folder_ / "bin").string() + ":/usr/bin:/bin",
        retort_binary(), "launch",
        recipe.string()};
    argv.insert(argv.end(), more.begin(), more.end());
    return Command(argv).wait();
  };
  const auto submit = [&](const std::string& value, std::vector<std::string> more) {
    more.insert(more.end(),
                {"launch.backend=slurm", "--submit", "roles.student.env={MY_KEY: " + value + "}"});
    const CommandResult result = with_slurm(path, more);
    EXPECT_EQ(result.exit_code, 0) << result.output;
  };
  submit("hf_4711", {});
  expect_kept_secret(run("job"), "hf_4711");

  // What has run has the value that it had; the job that waits has another.
  submit("hf_4712", {"--resume"});
  const auto holds = [&](const char* file, const std::string& value) {
    return read_file(run("job") / file).find(value) != std::string::npos;
  };
  EXPECT_TRUE(holds("roles.env", "hf_4711"));
  EXPECT_TRUE(holds("slurm.roles.env", "hf_4712"));
  const CommandResult job = with_slurm(run("job") / "slurm.yaml", {"--resume", "--submitted"});
  EXPECT_NE(job.output.find("this is no allocation"), std::string::npos) << job.output;
}

TEST_F(UserCommands, AnotherValueOfAVariableIsToldWithoutIt) {
  const auto key = [](const std::string& value) {
    return "roles.student.env={MY_KEY: " + value + "}";
  };
  ASSERT_EQ(launch("told", {key("hf_4711"), "train.exit_interval=3"}).exit_code, 4);
  const CommandResult result = launch("told", {key("hf_4712"), "--resume"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("roles.student.env.MY_KEY: another value"), std::string::npos)
      << result.output;
  EXPECT_EQ(result.output.find("hf_47"), std::string::npos) << result.output;
}

TEST_F(UserCommands, WhoStartsNoProcessNeedsNoValueOfAVariable) {
  const fs::path path = write_recipe(folder_ / "looked", {});
  const std::string text = read_file(path);
  std::ofstream(path) << text.substr(0, text.find("data:")) + "    env: {MY_KEY: null}\n" +
                             text.substr(text.find("data:"));
  for (const char* command : {"plan", "audit", "check", "doctor", "probe", "launch"}) {
    const CommandResult result = retort({command, path.string()});
    const bool is_missed =
        result.output.find("MY_KEY has here, and it is not set") != std::string::npos;
    EXPECT_EQ(is_missed, std::string(command) == "launch") << command << ": " << result.output;
  }
}

// Whoever holds signals for it (the first process of a container is one that none ends): it ends by
// itself, before it has made anything.
TEST_F(UserCommands, ASignalBeforeItBeginsEndsIt) {
  const fs::path path = write_recipe(folder_ / "early", {});
  const CommandResult result =
      Command({"sh", "-c",
               "env --block-signal=TERM sh -c 'kill -TERM $$; exec \"$0\" launch \"$1\"' \"$0\" "
               "\"$1\"; exit $?",
               retort_binary(), path.string()})
          .wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.output;
  EXPECT_EQ(result.output.find("Terminated"), std::string::npos) << "it was ended by the signal";
  EXPECT_FALSE(fs::exists(run("early")));
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
  const std::string program =
      script("track.sh", std::string(kNoneOfOurs) + "cat >> $1; echo finished");
  const std::string setting = "launch.metrics_command=[" + program + ", " + got + "]";
  const CommandResult first = launch("told", {setting, "train.exit_interval=3"});
  ASSERT_EQ(first.exit_code, 4) << first.output;
  EXPECT_EQ(read_file(got), read_file(run("told") / "metrics.jsonl"));
  const CommandResult second = launch("told", {setting, "--resume"});
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_EQ(read_file(got), read_file(run("told") / "metrics.jsonl"));
  EXPECT_EQ(read_file(run("told") / "logs/metrics_command.log"), "finished\nfinished\n");
  EXPECT_EQ(second.output.find("launch.metrics_command"), std::string::npos) << second.output;

  // The number of its starts is damaged: told, with the file and what to do.
  std::ofstream(run("told") / ".incarnation") << "x\x1b[2J";
  const CommandResult damaged = launch("told", {"--resume"});
  EXPECT_EQ(damaged.exit_code, 1) << damaged.output;
  EXPECT_NE(damaged.output.find(".incarnation is damaged: it has 'x\\x1b[2J'"), std::string::npos)
      << damaged.output;
}

// `retort launch r.yaml 2>&1 | less`, and nobody turns the page: what is said waits, the run does
// not, and somebody who asks it to stop is heard.
TEST_F(UserCommands, NobodyWhoReadsKeepsTheRunWaiting) {
  ASSERT_EQ(launch("unread", {"train.exit_interval=2"}).exit_code, 4);
  const fs::path page = folder_ / "page";
  ASSERT_EQ(::mkfifo(page.c_str(), 0600), 0);
  const int pipe = ::open(page.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(pipe, 0);
  const std::string filling(4096, '.');
  while (::write(pipe, filling.data(), filling.size()) > 0) {
  }

  // It says that a key has changed before it starts anything.
  const auto unread = [&](const std::string& steps) {
    return std::vector<std::string>{"sh",
                                    "-c",
                                    "exec \"$0\" \"$@\" >" + page.string() + " 2>&1",
                                    retort_binary(),
                                    "launch",
                                    (folder_ / "unread" / "recipe.yaml").string(),
                                    "--resume",
                                    "train.max_steps=" + steps};
  };
  Command one(unread("8"));
  EXPECT_EQ(one.wait().exit_code, 0);
  EXPECT_EQ(read_metrics(run("unread")).back().at("step"), 8);

  Command endless(unread("1000000"));
  EXPECT_TRUE(wait_until([&] { return read_metrics(run("unread")).size() > 10; }));
  endless.signal(SIGINT);
  EXPECT_EQ(endless.wait().exit_code, 130);
  ::close(pipe);
}

// The launcher ran one of the commands, the student the other.
TEST_F(UserCommands, AfterTheLauncherIsKilledNothingOfThemStays) {
  const auto leaves = [&](const std::string& name) {
    return script(name, "sleep 1000 >/dev/null 2>&1 </dev/null &\necho $! $$ end > " +
                            (folder_ / name).string() + ".pids\ncat >/dev/null; sleep 1000");
  };
  const fs::path path = write_recipe(folder_ / "killed", {});
  Command launcher({retort_binary(), "launch", path.string(), "train.max_steps=1000000",
                    "train.save_steps=2", "launch.stop_timeout=2s",
                    "train.checkpoint_command=[" + leaves("upload") + "]",
                    "launch.metrics_command=[" + leaves("track") + "]"});
  std::vector<pid_t> started;
  for (const char* name : {"upload.pids", "track.pids"}) {
    const fs::path file = folder_ / name;
    ASSERT_TRUE(
        wait_until([&] { return fs::exists(file) && read_file(file).ends_with(" end\n"); }));
    pid_t helper = -1, program = -1;
    std::istringstream(read_file(file)) >> helper >> program;
    for (const pid_t pid : {helper, program}) {
      EXPECT_TRUE(process_runs(pid)) << name;
      started.push_back(pid);
    }
  }

  launcher.signal(SIGKILL);
  launcher.wait();
  for (const pid_t pid : started)
    EXPECT_TRUE(wait_until([&] { return !process_runs(pid); })) << pid;
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
