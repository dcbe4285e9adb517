// What the processes of a run start and do not end, and a reader of the progress who does not read.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "launch/status/progress.h"
#include "tests/launch/supervision/supervisor_fixture.h"

namespace retort::test {
namespace {

// Both are in a process group of their own, which killing that of the student does not reach.
TEST_F(SupervisorTest, WhatAProcessLeavesBehindIsEndedAndReaped) {
  add("student", 0, "leave-behind");
  EXPECT_EQ(run().exit_code, 0);
  pid_t child = 0;
  pid_t grandchild = 0;
  std::istringstream(get(folder_ / "left")) >> child >> grandchild;
  ASSERT_GT(grandchild, 0);
  for (const pid_t pid : {child, grandchild}) {
    EXPECT_FALSE(process_runs(pid)) << "it outlived the run";
    if (process_runs(pid)) ::kill(pid, SIGKILL);
  }
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child was not reaped";
}

TEST_F(SupervisorTest, AnOrphanIsReapedWhileTheRunGoesOn) {
  add("student", 0, "wait-for-reaper");
  EXPECT_EQ(run().exit_code, 0) << "an orphan that had ended was still there";
}

// As a job of the shell that became the launcher by exec.
TEST_F(SupervisorTest, AChildFromBeforeTheRunIsSpared) {
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const char* argv[] = {"sleep", "1000", nullptr};
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawnp(&pid, "sleep", nullptr, &attributes, const_cast<char**>(argv), environ),
            0);
  ::posix_spawnattr_destroy(&attributes);

  add("student", 0, "finish");
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_TRUE(process_runs(pid));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

TEST_F(SupervisorTest, NobodyHasToReadTheProgress) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  while (::write(ends[1], "x", 1) == 1) {
  }
  ::fcntl(ends[1], F_SETFL, 0);  // full, and waits for a reader

  add("teacher", 0, "serve");
  add("student", 0, "finish");
  {
    launch::SignalCatcher signals({SIGINT, SIGTERM, SIGHUP});
    launch::Progress progress({.fd = ends[1],
                               .title = "title",
                               .metrics = folder_ / "metrics.jsonl",
                               .max_steps = 1,
                               .last_wait = Duration(1)});
    EXPECT_EQ(launch::Supervisor(options_, &progress).run(signals).exit_code, 0);
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace retort::test
