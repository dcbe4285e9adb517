// What Slurm is told for a run, what it says itself, and what the script of a job does with the
// launcher: that is run here by bash, with a program in the launcher's place.
#include "launch/slurm/texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "launch/commands/submit.h"
#include "launch/slurm/exit_status.h"
#include "launch/slurm/job.h"
#include "launch/slurm/run.h"
#include "launch/slurm/run_backend.h"
#include "launch/slurm/steps.h"
#include "tests/support/command.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {
namespace fs = std::filesystem;
using namespace std::chrono_literals;

using Strings = std::vector<std::string>;

recipes::Recipe slurm_recipe() {
  recipes::Recipe recipe;
  recipe.launch.backend = recipes::Backend::kSlurm;
  recipe.launch.resolve(/*is_stop_timeout_written=*/false);
  recipe.roles["student"].world.dp = 2;
  recipe.roles["teacher"].world.tp = 3;
  return recipe;
}

TEST(SrunArguments, AreOfOneRoleAndHoldNoSecret) {
  const launch::StepText step{.name = "retort-1-teacher",
                              .role = "teacher",
                              .tasks = 3,
                              .cpus_per_task = 4,
                              .most_nodes = 2,
                              .start_timeout = 1500ms,
                              .logs = "/runs/50% off/logs",
                              .command = {"/opt/retort", "join", "--role", "teacher"}};
  const Strings expected{"--job-name=retort-1-teacher",
                         "--ntasks=3",
                         "--cpus-per-task=4",
                         "--nodes=1-2",
                         "--distribution=block",
                         "--exact",
                         "--mem=0",
                         "--immediate=2",
                         "--kill-on-bad-exit=0",
                         "--wait=0",
                         "--export=ALL",
                         "--input=none",
                         "--output=/runs/50%% off/logs/teacher-%t.log",
                         "--open-mode=append",
                         "--gres=none",
                         "/opt/retort",
                         "join",
                         "--role",
                         "teacher"};
  EXPECT_EQ(launch::srun_arguments(step), expected);

  launch::StepText on_devices = step;
  on_devices.cuda = true;
  on_devices.tasks = 1;
  const Strings arguments = launch::srun_arguments(on_devices);
  EXPECT_TRUE(std::ranges::count(arguments, "--gpus-per-task=1"));
  EXPECT_TRUE(std::ranges::count(arguments, "--gpu-bind=none"));
  EXPECT_TRUE(std::ranges::count(arguments, "--nodes=1-1"));
  EXPECT_FALSE(std::ranges::count(arguments, "--gres=none"));
}

// The #SBATCH lines, without the marker.
Strings options_of(const std::string& script) {
  Strings options;
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("#SBATCH ")) options.push_back(line.substr(8));
  return options;
}

TEST(BatchScript, AsksForWhatTheRecipeSays) {
  recipes::Recipe recipe = slurm_recipe();
  const launch::BatchText text{.recipe = recipe,
                               .run_folder = "/runs/a",
                               .recipe_file = "/runs/a/slurm.yaml",
                               .program = "/opt/re tort"};
  Strings expected{"--job-name=a",       "--output=/runs/a/slurm-%j.log",
                   "--open-mode=append", "--ntasks=5",
                   "--signal=B:USR1@55", "--requeue"};
  EXPECT_EQ(options_of(launch::batch_script(text)), expected);
  EXPECT_NE(launch::batch_script(text).find(
                "\n'/opt/re tort' launch /runs/a/slurm.yaml --resume --submitted &\n"),
            std::string::npos);

  recipe.roles["teacher"].world.threads = 6;
  recipe.launch.stop_timeout = 10s;
  recipe.launch.slurm = {.partition = "long",
                         .account = "lab",
                         .time = "1:30:00",
                         .gres = "gpu:2",
                         .args = {"--qos=high", "--comment=it's ours"},
                         .requeue = false};
  expected = {"--job-name=a",
              "--output=/runs/a/slurm-%j.log",
              "--open-mode=append",
              "--ntasks=5",
              "--signal=B:USR1@40",
              "--no-requeue",
              "--cpus-per-task=6",
              "--partition=long",
              "--account=lab",
              "--time=1:30:00",
              "--gres=gpu:2",
              "--qos=high",
              R"('--comment=it'\''s ours')"};
  EXPECT_EQ(options_of(launch::batch_script(text)), expected);
  EXPECT_EQ(launch::batch_script(text).find("scontrol"), std::string::npos);
}

// The script, with programs of this folder for the launcher and for scontrol.
class BatchJob : public FolderTest {
 protected:
  // `launcher`: what it does when it is asked to stop, and else.
  void run_script(const std::string& launcher, bool requeue = true) {
    write_program("launcher", launcher);
    write_program("scontrol", "echo \"$@\" >> " + (folder_ / "queued").string());
    recipes::Recipe recipe = slurm_recipe();
    recipe.launch.slurm.requeue = requeue;
    put(folder_ / "slurm.sh", launch::batch_script({.recipe = recipe,
                                                    .run_folder = folder_,
                                                    .recipe_file = folder_ / "slurm.yaml",
                                                    .program = folder_ / "launcher"}));
    const std::string path = folder_.string() + ":" + std::getenv("PATH");
    job_.emplace(Strings{"/usr/bin/env", "PATH=" + path, "SLURM_JOB_ID=17", "bash",
                         (folder_ / "slurm.sh").string()});
  }
  void wait_for_launcher() {
    ASSERT_TRUE(wait_until([&] { return fs::exists(folder_ / "up"); }));
  }
  int exit_code() { return job_->wait().exit_code; }
  std::string queued() const {
    return fs::exists(folder_ / "queued") ? get(folder_ / "queued") : "";
  }
  // That saves when it is asked to stop, which takes a while, and is killed when it is asked again.
  std::string saves() const {
    return "trap 'trap - TERM; sleep 0.3; exit 4' TERM\n: > " + (folder_ / "up").string() +
           "\nwhile :; do sleep 0.05; done\n";
  }

  std::optional<Command> job_;

 private:
  void write_program(const std::string& name, const std::string& text) {
    put(folder_ / name, "#!/bin/sh\n" + text + "\n");
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
};

// 4 without a warning: the run stopped by itself (train.max_time), or somebody stopped a rank.
TEST_F(BatchJob, EndsWithTheLaunchersExitCode) {
  for (const int code : {0, 1, 2, 3, 4}) {
    run_script("exit " + std::to_string(code));
    EXPECT_EQ(exit_code(), code);
  }
  EXPECT_EQ(queued(), "");
}

TEST_F(BatchJob, IsQueuedAgainWhenItsTimeIsNearlyUp) {
  run_script(saves());
  wait_for_launcher();
  job_->signal(SIGUSR1);
  EXPECT_EQ(exit_code(), 4);
  EXPECT_EQ(queued(), "requeue 17\n");
}

TEST_F(BatchJob, IsNotQueuedAgainWhenItIsCancelled) {
  run_script(saves());
  wait_for_launcher();
  // As scancel does it: all processes of the job.
  ASSERT_EQ(::kill(-job_->pid(), SIGTERM), 0);
  EXPECT_EQ(exit_code(), 4);
  EXPECT_EQ(queued(), "");
}

TEST_F(BatchJob, IsQueuedAgainWhenAProcessWasLost) {
  run_script("exit " + std::to_string(launch::kExitQueueAgain));
  EXPECT_EQ(exit_code(), 1);
  EXPECT_EQ(queued(), "requeue 17\n");
}

TEST_F(BatchJob, IsNeverQueuedAgainUnlessTheRecipeSaysSo) {
  run_script(saves(), /*requeue=*/false);
  wait_for_launcher();
  job_->signal(SIGUSR1);
  EXPECT_EQ(exit_code(), 4);
  EXPECT_EQ(queued(), "");
}

TEST(SlurmJobOf, IsWhatTheVariablesSay) {
  EXPECT_FALSE(launch::slurm_job({}));
  launch::Variables variables{
      {"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NODELIST", "n[3-5]"}, {"SLURM_JOB_NUM_NODES", "3"}};
  auto job = launch::slurm_job(variables);
  ASSERT_TRUE(job);
  EXPECT_EQ(job->id, "17");
  EXPECT_EQ(job->first_host, "n3");
  EXPECT_EQ(job->num_nodes, 3);
  EXPECT_EQ(job->cpus_per_task, 1);
  EXPECT_FALSE(job->was_requeued);

  variables["SLURM_CPUS_PER_TASK"] = "8";
  variables["SLURM_RESTART_COUNT"] = "1";
  job = launch::slurm_job(variables);
  EXPECT_EQ(job->cpus_per_task, 8);
  EXPECT_TRUE(job->was_requeued);
  variables["SLURM_CPUS_PER_TASK"] = "many";
  expect_refused("SLURM_CPUS_PER_TASK is 'many'", [&] { launch::slurm_job(variables); });
}

TEST(KillWait, BoundsTheTimeToStop) {
  const std::string config =
      "Configuration data\nInactiveLimit           = 0 sec\nKillOnBadExit           = 0\n"
      "KillWait                = 30 sec\nLaunchParameters        = (null)\n";
  EXPECT_EQ(launch::kill_wait_of(config), 30s);
  expect_error(ErrorCode::kCorrupt, "does not say KillWait",
               [] { launch::kill_wait_of("KillOnBadExit = 0\n"); });
  EXPECT_NO_THROW(launch::check_stop_timeout(30s, 30s));
  expect_refused("raise KillWait in slurm.conf", [] { launch::check_stop_timeout(31s, 30s); });
  EXPECT_EQ(slurm_recipe().launch.stop_timeout, 25s);
}

TEST(SubmittedJob, IsTheNumberThatSbatchSays) {
  EXPECT_EQ(launch::submitted_job("17\n"), "17");
  EXPECT_EQ(launch::submitted_job("sbatch: warning: 3 nodes\n18;cluster\n"), "18");
  expect_error(ErrorCode::kUnavailable, "did not say the number",
               [] { launch::submitted_job("sbatch: nothing\n"); });
}

TEST(TaskStatus, IsThatOfWaitpid) {
  EXPECT_EQ(launch::task_status_of(0), 0);
  EXPECT_EQ(launch::task_status_of(3), 3 << 8);
  EXPECT_EQ(launch::task_status_of(137), SIGKILL);
}

TEST(TaskEnd, IsWhatSrunSaysOfThatTask) {
  const std::string words =
      "srun: error: n2: task 1: Killed\n"
      "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n"
      "srun: error: n[1-2]: tasks 3-5,12: Exited with exit code 3\n"
      "srun: error: n1: task 7: Segmentation fault (core dumped)\n"
      "srun: error: n1: task 8: Out Of Memory\n"
      "srun: error: n1: task 9: Kil";
  EXPECT_EQ(launch::task_end_of(words, 1), SIGKILL);
  for (const int64_t task : {3, 4, 5, 12})
    EXPECT_EQ(launch::task_end_of(words, task), 3 << 8) << task;
  EXPECT_EQ(launch::task_end_of(words, 7), SIGSEGV);
  EXPECT_EQ(launch::task_end_of(words, 8), SIGKILL);
  for (const int64_t task : {0, 2, 6, 9, 13})
    EXPECT_EQ(launch::task_end_of(words, task), std::nullopt) << task;
  // What is said then of tasks there is a guess.
  EXPECT_EQ(launch::task_end_of("srun: error: Node failure on n2\n" + words, 1), std::nullopt);
}

// With a srun that writes down what it has.
class StepVariables : public FolderTest {
 protected:
  StepVariables() : path_(std::getenv("PATH")) {
    const fs::path srun = folder_ / "srun";
    put(srun, "#!/bin/sh\nenv > " + (folder_ / "seen").string() + "\n");
    fs::permissions(srun, fs::perms::owner_all);
    ::setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1);
    ::setenv("SLURM_NTASKS", "4", 1);
  }
  ~StepVariables() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("SLURM_NTASKS");
  }

 private:
  const std::string path_;
};

TEST_F(StepVariables, AreForItsTasksAndNotForSrun) {
  {
    launch::SlurmSteps steps("17");
    steps.start_step({.name = "retort-1-student",
                      .role = "student",
                      .arguments = {},
                      .log = folder_ / "srun.log",
                      .variables = {{"LD_LIBRARY_PATH", "/of/the/role"},
                                    {"PATH", "/of/the/role"},
                                    {"SLURM_NTASKS", "9"}}});
  }
  const std::string seen = "\n" + get(folder_ / "seen");
  for (const char* passed :
       {"LD_LIBRARY_PATH=/of/the/role", "PATH=/of/the/role", "SLURM_NTASKS=9"}) {
    EXPECT_NE(seen.find("\nRETORT_ENV_" + std::string(passed)), std::string::npos) << seen;
    EXPECT_EQ(seen.find("\n" + std::string(passed)), std::string::npos) << seen;
  }
  EXPECT_NE(seen.find("\nSLURM_NTASKS=4\n"), std::string::npos) << seen;
}

TEST(Nodes, TpRanksAreOnOne) {
  recipes::Recipe recipe;
  recipe.roles["student"].world.dp = 2;
  recipe.roles["teacher"].world.dp = 2;
  recipe.roles["teacher"].world.tp = 2;
  const auto members = [](const Strings& teachers) {
    std::vector<launch::Member> all{{.name = "student/0", .host = "n1"},
                                    {.name = "student/1", .host = "n2"}};
    for (size_t rank = 0; rank < teachers.size(); ++rank)
      all.push_back({.name = "teacher/" + std::to_string(rank), .host = teachers[rank]});
    return all;
  };
  EXPECT_NO_THROW(launch::check_nodes(recipe, members({"n1", "n1", "n2", "n2"})));
  expect_refused("Slurm has put teacher/2 on n1 and teacher/3 on n2", [&] {
    launch::check_nodes(recipe, members({"n1", "n1", "n1", "n2"}));
  });
}

// The job's script alone sees the code; who has no such script gets that of the failure.
TEST(SlurmEnd, QueuesASubmittedJobAgainThatLostAProcess) {
  recipes::Recipe recipe = slurm_recipe();
  const launch::StartEnd lost{
      .exit_code = 1, .goes_on = true, .lost_process = true, .progressed = true};
  const launch::StartEnd failed{.exit_code = 2, .progressed = true};
  const auto code = [&](const launch::StartEnd& end, bool submitted) {
    const launch::SlurmRunBackend backend(
        {.recipe = recipe, .recipe_file = {}, .submitted = submitted});
    const launch::StartEnd after = backend.after_end(end);
    EXPECT_EQ(after.goes_on, end.goes_on && after.exit_code == end.exit_code);
    return after.exit_code;
  };
  EXPECT_EQ(code(lost, true), launch::kExitQueueAgain);
  EXPECT_EQ(code(lost, false), 1);
  EXPECT_EQ(code(failed, true), 2);
  recipe.launch.slurm.requeue = false;
  EXPECT_EQ(code(lost, true), 1);
}

TEST(StepSecret, IsItsOwnersAloneAndGoesWithTheStart) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("secret", "of a launcher that was killed");
  fs::permissions(file, fs::perms::all);
  {
    const launch::SecretFile secret(file, "0123456789abcdef");
    EXPECT_EQ(read_file(file), "0123456789abcdef");
    EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  }
  EXPECT_FALSE(fs::exists(file));
}

}  // namespace
}  // namespace retort::test
