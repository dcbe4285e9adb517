// status.json of real processes.
#include <signal.h>

#include "launch/status/status_file.h"
#include "launch/supervision/observers.h"
#include "tests/launch/supervision/supervisor_fixture.h"

namespace retort::test {
namespace {

using launch::ProcessState;
using launch::RunState;

TEST_F(SupervisorTest, TheStatusFileSaysHowEachProcessEnded) {
  add("teacher", 0, "serve");
  add("teacher", 1, "crash");
  add("student", 0, "train", "0");
  const auto file = folder_ / launch::kStatusFile;
  RunState at_crash = RunState::kStarting;
  when_ready(3, [&] { put(folder_ / "crash", ""); });
  script_.phase = [&](const std::string&) {
    at_crash = launch::decode_run_status(get(file)).state;
  };

  launch::SignalCatcher signals({SIGINT, SIGTERM, SIGHUP});
  launch::StatusFile status({.path = file, .run = "run", .recipe = "sft"});
  launch::Observers both({&script_, &status});
  launch::Supervisor supervisor(options_, &both);
  status.finish(supervisor.run(signals));

  EXPECT_EQ(at_crash, RunState::kRunning);
  const auto written = launch::decode_run_status(get(file));
  EXPECT_EQ(written.state, RunState::kFailed);
  EXPECT_EQ(written.exit_code, 1);
  ASSERT_TRUE(written.cause);
  EXPECT_EQ(written.cause->process, "teacher/1");
  ASSERT_EQ(written.processes.size(), 3u);
  EXPECT_EQ(written.processes[0].state, ProcessState::kStopped) << "it obeyed";
  EXPECT_EQ(written.processes[1].state, ProcessState::kFailed);
  EXPECT_EQ(written.processes[1].signal, SIGSEGV);
  EXPECT_EQ(written.processes[1].pid, script_.pids[1]);
  EXPECT_EQ(written.processes[2].state, ProcessState::kStopped);
  EXPECT_EQ(written.processes[2].exit_code, 0);
}

}  // namespace
}  // namespace retort::test
