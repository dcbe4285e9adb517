// What a run says at its end: how it goes on, or where its result is.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>

#include "launch/commands/launch.h"
#include "launch/supervision/supervisor.h"
#include "tests/support/folder_fixture.h"

namespace retort::test {
namespace {

class LastLine : public FolderTest {
 protected:
  LastLine() {
    result_.exit_code = launch::kExitStoppedEarly;
    result_.signal = SIGTERM;
    result_.stopped_early = true;
  }

  void save(bool complete) const {
    put(folder_ / "checkpoint-3" / "config.json", "{}");
    if (complete) put(folder_ / "checkpoint-3" / "state" / "COMPLETE", "complete\n");
  }
  std::string line() const { return launch::last_line(command_, result_, folder_); }

  launch::LaunchCommand command_{.recipe = "r.yaml", .overrides = {}};
  launch::SupervisorResult result_;
};

// Each word that a shell makes of the command line, on a line of its own.
std::string shell_words(const std::string& words) {
  FILE* shell = ::popen(("printf '%s\\n' " + words).c_str(), "r");
  if (shell == nullptr) return "no shell";
  std::string text;
  for (int c = std::fgetc(shell); c != EOF; c = std::fgetc(shell))
    text += static_cast<char>(c);
  ::pclose(shell);
  return text;
}

TEST_F(LastLine, GoesOnFromACheckpoint) {
  save(true);
  EXPECT_EQ(line(), "stopped; continue with: retort launch r.yaml --resume");
}

TEST_F(LastLine, RepeatsTheOverrides) {
  save(true);
  command_.overrides = {"train.max_steps=20", "output_dir=runs/a-b_c.1"};
  EXPECT_EQ(line(),
            "stopped; continue with: retort launch r.yaml --resume train.max_steps=20 "
            "output_dir=runs/a-b_c.1");
}

TEST_F(LastLine, IsWhatAShellReadsAsTyped) {
  save(true);
  command_.recipe = "my recipe.yaml";
  command_.overrides = {"data.train=[{path: a.jsonl}]", "output_dir=it's $HOME",
                        "generation.stop=", "rewards.0.pattern=\\d+`*"};
  const std::string text = line();
  const std::string before = "stopped; continue with: ";
  ASSERT_TRUE(text.starts_with(before)) << text;
  EXPECT_EQ(shell_words(text.substr(before.size())),
            "retort\nlaunch\nmy recipe.yaml\n--resume\ndata.train=[{path: a.jsonl}]\n"
            "output_dir=it's $HOME\ngeneration.stop=\nrewards.0.pattern=\\d+`*\n");
}

// What a shell has put in there may be a key, and stdout is a log of somebody's.
TEST_F(LastLine, LeavesOutTheValuesOfVariables) {
  save(true);
  command_.overrides = {"roles.student.env.HF_TOKEN=hf_4711", "seed=3",
                        "roles.teacher={env: {A: hf_4711}}"};
  const std::string text = line();
  EXPECT_EQ(text,
            "stopped; continue with: retort launch r.yaml --resume seed=3  # and with "
            "roles.student.env.HF_TOKEN, roles.teacher, not shown here: give it again");
  // Pasted, it takes no variable away.
  EXPECT_EQ(shell_words(text.substr(text.find("retort"))),
            "retort\nlaunch\nr.yaml\n--resume\nseed=3\n");
}

// A run that is stopped while it loads, or while its first checkpoint is written.
TEST_F(LastLine, WithoutACheckpointBeginsAgain) {
  command_.recipe = "recipe.yaml";
  command_.overrides = {"train.max_steps=3"};
  const std::string again =
      "stopped before a checkpoint was complete; begin again with: retort launch recipe.yaml "
      "--resume train.max_steps=3";
  EXPECT_EQ(line(), again);
  save(false);
  EXPECT_EQ(line(), again);
}

TEST_F(LastLine, OfARunThatIsDone) {
  result_.stopped_early = false;
  result_.exit_code = 0;
  EXPECT_EQ(line(), "done: " + (folder_ / "final").string());
  result_.exit_code = launch::kExitInterrupted;
  EXPECT_EQ(line(), "done: " + (folder_ / "final").string());
}

TEST_F(LastLine, SaysThatARunHasDiverged) {
  save(true);
  result_.warning = "the loss has diverged";
  result_.exit_code = launch::kExitDiverged;
  EXPECT_EQ(line(),
            "stopped, because the loss has diverged; to go on all the same: retort launch r.yaml "
            "--resume");
  result_.stopped_early = false;
  result_.exit_code = 0;
  EXPECT_EQ(line(), "done, but the loss has diverged: " + (folder_ / "final").string());
}

// A second Ctrl-C.
TEST_F(LastLine, OfARunThatWasKilled) {
  result_.killed = true;
  EXPECT_EQ(line(),
            "killed before a checkpoint was complete; begin again with: retort launch r.yaml "
            "--resume");
  save(true);
  EXPECT_EQ(line(), "killed; go on from the last checkpoint with: retort launch r.yaml --resume");
}

TEST_F(LastLine, TheReportNamesALimitThatAProcessMayHaveDiedOf) {
  result_.cause.emplace(launch::ProcessFailure{.role = "student", .signal = SIGABRT});
  EXPECT_EQ(result_.report().find("ulimit -d"), std::string::npos);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &before), 0);
  const rlimit tight{.rlim_cur = rlim_t{1} << 45, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &tight), 0);
  const std::string aborted = result_.report();
  result_.cause->signal = SIGKILL;
  const std::string killed = result_.report();
  ::setrlimit(RLIMIT_DATA, &before);
  EXPECT_NE(aborted.find("35184372088832 bytes of data here (`ulimit -d`)"), std::string::npos)
      << aborted;
  EXPECT_EQ(killed.find("ulimit"), std::string::npos) << "somebody did that";
}

TEST_F(LastLine, ThereIsNoneAfterAFailure) {
  save(true);
  result_.cause.emplace();
  EXPECT_EQ(line(), "");
}

}  // namespace
}  // namespace retort::test
