// status.json: what a supervisor's reports become, when they are written, and what a person sees.
#include <signal.h>
#include <unistd.h>

#include <limits>

#include "base/error.h"
#include "launch/commands/status.h"
#include "launch/status/status_file.h"
#include "launch/status/status_table.h"
#include "launch/supervision/observers.h"
#include "tests/launch/supervision/process_spec.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using launch::ProcessFailure;
using launch::ProcessSpec;
using launch::ProcessState;
using launch::ProgressState;
using launch::RunState;
using launch::RunStatus;
using launch::StatusFile;
using launch::SupervisorResult;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kKilled = SIGKILL;  // as waitpid gives it
constexpr int exited(int code) { return code << 8; }

const RunStatus::Time kStart{std::chrono::hours(500'000)};

class StatusTest : public FolderTest {
 protected:
  StatusFile::Options options() {
    return {.path = folder_ / launch::kStatusFile,
            .run = "gsm8k",
            .recipe = "distill",
            .max_steps = 20,
            .progress = &progress_,
            .now = [this] { return now_; },
            .patience = seconds(60)};
  }
  RunStatus written() const { return launch::decode_run_status(get(folder_ / "status.json")); }
  // A tick: what stands in the file after it.
  RunStatus after(milliseconds time, StatusFile& file) {
    now_ += time;
    file.on_tick();
    return written();
  }

  RunStatus::Time now_ = kStart;
  ProgressState progress_;
};

TEST_F(StatusTest, ARunFromItsStartToItsEnd) {
  StatusFile file(options());
  EXPECT_EQ(written().state, RunState::kStarting);
  EXPECT_EQ(written().launcher_pid, ::getpid());
  EXPECT_TRUE(written().processes.empty());

  // Two processes; each step on the way is a state of its own.
  file.on_start(process_spec("teacher", 0), 17);
  file.on_start(process_spec("student", 0), 18);
  file.on_status(process_spec("teacher", 0), {.state = "serving", .step = 0});
  file.on_status(process_spec("student", 0), {.state = "waiting", .message = "for teacher/0"});
  RunStatus status = after(milliseconds(1), file);
  ASSERT_EQ(status.processes.size(), 2u);
  EXPECT_EQ(status.processes[0].state, ProcessState::kReady);
  EXPECT_EQ(status.processes[0].pid, 17);
  EXPECT_EQ(status.processes[1].state, ProcessState::kLoading);
  EXPECT_EQ(status.processes[1].message, "waiting for teacher/0");

  progress_.fraction = 0.25;
  progress_.eta = seconds(90);
  progress_.last = launch::LoggedStep{5, {{"loss", 1.5}}};
  file.on_status(process_spec("student", 0), {.state = "training", .step = 6});
  status = after(milliseconds(1), file);
  EXPECT_EQ(status.state, RunState::kRunning);
  EXPECT_EQ(status.step, 6) << "steps between two logged ones count";
  EXPECT_EQ(status.eta, seconds(90));
  EXPECT_EQ(status.loss, 1.5);

  // The end: what is asked to end and does has not failed, whichever way it ends.
  file.on_end(process_spec("student", 0), {.status = exited(0), .as_asked = true});
  file.on_stopping();
  EXPECT_EQ(after(milliseconds(1), file).state, RunState::kStopping);
  file.on_end(process_spec("teacher", 0), {.status = SIGTERM, .as_asked = true});
  file.finish({.exit_code = 0});
  status = written();
  EXPECT_EQ(status.state, RunState::kDone);
  EXPECT_EQ(status.exit_code, 0);
  EXPECT_EQ(status.eta, std::nullopt);
  EXPECT_EQ(status.processes[0].state, ProcessState::kStopped);
  EXPECT_EQ(status.processes[0].signal, SIGTERM);
  EXPECT_EQ(status.processes[1].exit_code, 0);
}

TEST_F(StatusTest, IsWrittenAtChangesOfStateAndEverySecond) {
  StatusFile file(options());
  file.on_start(process_spec("student", 0), 18);
  file.on_status(process_spec("student", 0), {.state = "training", .step = 1});
  after(milliseconds(1), file);
  file.on_status(process_spec("student", 0), {.state = "training", .step = 2});
  EXPECT_EQ(after(milliseconds(500), file).step, 1) << "a step is no change of state";
  EXPECT_EQ(after(milliseconds(501), file).step, 2);
  EXPECT_EQ(written().updated, now_);

  file.on_status(process_spec("student", 0), {.state = "saving", .step = 2});
  EXPECT_EQ(after(milliseconds(1), file).processes[0].state, ProcessState::kSaving);
  EXPECT_EQ(written().processes[0].since, now_ - milliseconds(1));
  after(-seconds(3600), file);
  EXPECT_EQ(written().updated, now_) << "the clock was set back";
}

TEST_F(StatusTest, AProcessThatIsStartedAgainIsCounted) {
  StatusFile file(options());
  file.on_start(process_spec("teacher", 0), 17);
  file.on_status(process_spec("teacher", 0), {.state = "serving", .step = 40});
  file.on_end(process_spec("teacher", 0), {.status = kKilled});
  RunStatus status = after(milliseconds(1), file);
  EXPECT_EQ(status.processes[0].state, ProcessState::kFailed);
  EXPECT_EQ(status.processes[0].restarts, 0);

  file.on_start(process_spec("teacher", 0), 23);
  status = after(milliseconds(1), file);
  ASSERT_EQ(status.processes.size(), 1u);
  EXPECT_EQ(status.processes[0].state, ProcessState::kStarting);
  EXPECT_EQ(status.processes[0].pid, 23);
  EXPECT_EQ(status.processes[0].restarts, 1);
  EXPECT_EQ(status.processes[0].signal, SIGKILL) << "how the one before ended";
}

TEST_F(StatusTest, AFailureNamesItsCause) {
  StatusFile file(options());
  file.on_start(process_spec("teacher", 0), 17);
  file.on_start(process_spec("student", 0), 18);
  file.on_end(process_spec("student", 0), {.status = exited(1)});
  file.on_end(process_spec("teacher", 0), {.status = kKilled});
  SupervisorResult result{.exit_code = 1};
  result.cause = ProcessFailure{.role = "teacher", .signal = SIGKILL, .log = "logs/teacher-0.log"};
  result.consequences.push_back(
      {.role = "student", .exit_code = 1, .error = "peer_lost", .message = "the peer is gone"});
  file.finish(result);

  const RunStatus status = written();
  EXPECT_EQ(status.state, RunState::kFailed);
  ASSERT_TRUE(status.cause);
  EXPECT_EQ(status.cause->process, "teacher/0");
  EXPECT_EQ(status.cause->log, "logs/teacher-0.log");
  EXPECT_EQ(status.processes[1].cause, "teacher/0");
  EXPECT_EQ(status.processes[1].error, "peer_lost");
  std::string text;
  for (const auto& line : launch::render_status(status, now_ + seconds(60), false, 0))
    text += line + "\n";
  EXPECT_NE(text.find("gsm8k (distill): failed, exit code 1, 1m00s ago"), std::string::npos)
      << text;
  EXPECT_NE(text.find("the peer is gone [peer_lost] (after teacher/0)"), std::string::npos) << text;
  EXPECT_NE(text.find("teacher/0 failed first: it was killed by signal 9"), std::string::npos)
      << text;
}

// The step after it has nothing to say, and must not make it go away.
TEST_F(StatusTest, AWarningStaysUntilThereIsAnother) {
  StatusFile file(options());
  file.on_start(process_spec("student", 0), 18);
  file.on_status(process_spec("student", 0),
                 {.state = "training", .step = 5, .message = "a spike", .warning = true});
  file.on_status(process_spec("student", 0), {.state = "training", .step = 6});
  EXPECT_EQ(after(milliseconds(1), file).warning, "student/0: a spike");
  EXPECT_EQ(written().processes[0].message, "");
  file.on_status(process_spec("student", 0),
                 {.state = "training", .step = 7, .message = "another", .warning = true});
  EXPECT_EQ(after(milliseconds(1), file).warning, "student/0: another");
  const auto lines = launch::render_status(written(), now_, false, 0);
  EXPECT_EQ(lines.back(), "warning: student/0: another");
}

TEST_F(StatusTest, EndsThatAreNoFailures) {
  for (const auto& [code, early, state] : {std::tuple{0, false, RunState::kDone},
                                           {130, false, RunState::kDone},
                                           {4, true, RunState::kStopped},
                                           {130, true, RunState::kStopped},
                                           {5, true, RunState::kStopped},
                                           {1, true, RunState::kFailed},
                                           {3, false, RunState::kFailed}}) {
    StatusFile file(options());
    file.finish({.exit_code = code, .stopped_early = early});
    EXPECT_EQ(written().state, state) << code << " " << early;
  }
}

TEST_F(StatusTest, ALauncherThatGivesUpSaysSo) {
  { StatusFile file(options()); }
  EXPECT_EQ(written().state, RunState::kFailed);
  EXPECT_EQ(written().exit_code, 1);
}

// Its run goes on without it.
TEST_F(StatusTest, AnAttachedLauncherThatGivesUpEndsNothing) {
  StatusFile::Options attached = options();
  attached.is_attached = true;
  {
    StatusFile file(attached);
    ProcessSpec spec = process_spec("teacher", 0);
    spec.context.restart = 2;  // of the launchers before
    file.on_start(spec, 18);
    EXPECT_EQ(file.status().processes[0].restarts, 2);
    file.on_start(spec, 19);
    EXPECT_EQ(file.status().processes[0].restarts, 3);
  }
  EXPECT_EQ(written().exit_code, std::nullopt);
}

// Whoever watches it must not take the end of one start for the end of the run.
TEST_F(StatusTest, ARunThatGoesOnHasNotEnded) {
  SupervisorResult result{.exit_code = 1};
  result.cause = ProcessFailure{.role = "student", .rank = 1, .signal = SIGKILL};
  {
    StatusFile file(options());
    file.on_start(process_spec("student", 1), 18);
    file.finish(result, /*goes_on=*/true);
  }
  const RunStatus status = written();
  EXPECT_FALSE(status.ended());
  EXPECT_EQ(status.state, RunState::kStarting);
  EXPECT_EQ(status.notice, "the run goes on from its last checkpoint");
  ASSERT_TRUE(status.cause);
  EXPECT_EQ(status.cause->process, "student/1");
  EXPECT_EQ(status.processes[0].state, ProcessState::kFailed);
}

TEST_F(StatusTest, AFileThatCannotBeWrittenDoesNotEndTheRun) {
  StatusFile::Options nowhere = options();
  nowhere.path = folder_ / "missing" / "status.json";
  StatusFile file(nowhere);
  file.on_start(process_spec("student", 0), 18);
  file.on_tick();
  std::filesystem::create_directory(folder_ / "missing");
  now_ += seconds(1);
  file.on_tick();
  EXPECT_EQ(launch::decode_run_status(get(nowhere.path)).processes.size(), 1u);
}

TEST_F(StatusTest, AnythingAProcessSaysCanBeWritten) {
  progress_.last = launch::LoggedStep{5, {{"loss", std::numeric_limits<double>::quiet_NaN()}}};
  StatusFile file(options());
  file.on_start(process_spec("student", 0), 18);
  file.on_status(process_spec("student", 0), {.state = "training", .message = "a\xff\"\n\x1b[2Jb"});
  const RunStatus status = after(milliseconds(1), file);
  EXPECT_EQ(status.processes[0].message, "a\"\n\x1b[2Jb");
  EXPECT_EQ(status.loss, std::nullopt);
  for (const auto& line : launch::render_status(status, now_, false, 60)) {
    EXPECT_LE(line.size(), 60u) << line;
    EXPECT_EQ(line.find_first_of("\x1b\n"), std::string::npos) << "a message moved the cursor";
  }
}

TEST_F(StatusTest, TheTable) {
  RunStatus status{.run = "r", .recipe = "sft", .state = RunState::kRunning, .launcher_pid = 7};
  status.launcher_host = "box";
  status.started = kStart;
  status.updated = kStart + seconds(100);
  status.step = 10, status.max_steps = 20, status.fraction = 0.5, status.loss = 0.25;
  status.processes.push_back({.role = "student",
                              .pid = 18,
                              .host = "box",
                              .state = ProcessState::kTraining,
                              .since = kStart + seconds(35),
                              .step = 10,
                              .last_report = kStart + seconds(98)});
  const std::vector<std::string> expected{
      "r (sft): running, started 1m40s ago",
      "[===============>              ] step 10/20  loss 0.2500", "",
      "PROCESS    STATE     FOR    STEP  REPORTED  RESTARTS  EXIT  PID  HOST  MESSAGE",
      "student/0  training  1m05s  10    2s        0         -     18   box"};
  EXPECT_EQ(launch::render_status(status, kStart + seconds(100), false, 0), expected);

  // A lost launcher: the ages stand still, but for its own.
  auto lines = launch::render_status(status, kStart + seconds(160), true, 0);
  EXPECT_EQ(lines[4], expected[4]);
  EXPECT_EQ(lines.back(),
            "the launcher (pid 7 on box) is gone or held: no update for 1m00s; `retort launch ... "
            "--resume` goes on");
}

TEST_F(StatusTest, ALauncherIsLostWhenNobodyWrites) {
  RunStatus status{.state = RunState::kRunning, .updated = kStart};
  EXPECT_FALSE(launcher_is_lost(status, kStart + seconds(14), true));
  EXPECT_TRUE(launcher_is_lost(status, kStart + seconds(16), true));
  EXPECT_FALSE(launcher_is_lost(status, kStart + seconds(2), false)) << "it has just written";
  EXPECT_TRUE(launcher_is_lost(status, kStart + seconds(4), false));
  status.exit_code = 0;
  EXPECT_FALSE(launcher_is_lost(status, kStart + seconds(3600), false)) << "the run has ended";
}

TEST_F(StatusTest, TheCommandsExitCodeIsTheRuns) {
  const auto code = [&] { return launch::run_status({.run = folder_.string()}); };
  testing::internal::CaptureStdout();
  now_ = StatusFile::Clock::now();
  StatusFile file(options());
  EXPECT_EQ(code(), 0) << "it goes on";
  file.finish({.exit_code = 4, .stopped_early = true});
  EXPECT_EQ(code(), 4);
  EXPECT_EQ(launch::run_status({.run = folder_.string(), .watch = true}), 4)
      << "watching ends with the run";

  RunStatus old = written();
  old.exit_code.reset();
  old.updated -= std::chrono::hours(1);
  put(folder_ / "status.json", launch::encode_run_status(old));
  EXPECT_EQ(code(), 1);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("is gone or held"), std::string::npos);
}

TEST_F(StatusTest, TheCommandNamesWhatIsNoRun) {
  const auto message = [&](const std::filesystem::path& run, ErrorCode code) {
    return message_of([&] { launch::run_status({.run = run.string()}); }, code);
  };
  EXPECT_NE(message(folder_ / "no", ErrorCode::kInvalidArgument).find("is no folder"),
            std::string::npos);
  EXPECT_NE(message(folder_, ErrorCode::kInvalidArgument).find("holds no status.json"),
            std::string::npos);
  for (const std::string text : {"{", "[]", "{\"run\": 1}"}) {
    put(folder_ / "status.json", text);
    EXPECT_NE(message(folder_, ErrorCode::kCorrupt).find("status.json: not the status of a run"),
              std::string::npos)
        << text;
  }
}

// Counts what it is told.
class Counter : public launch::SupervisorObserver {
 public:
  void on_start(const ProcessSpec&, pid_t) override { ++calls; }
  void on_status(const ProcessSpec&, const launch::ProcessStatus&) override { ++calls; }
  void on_end(const ProcessSpec&, const launch::ProcessEnd&) override { ++calls; }
  void on_exit(const ProcessSpec&, const std::string&) override { ++calls; }
  void on_phase(const std::string&) override { ++calls; }
  void on_stopping() override { ++calls; }
  void on_tick() override { ++calls; }
  int calls = 0;
};

TEST(ObserversTest, AllHearEverything) {
  Counter first, second;
  launch::Observers both({&first, &second});
  both.on_start({}, 1);
  both.on_status({}, {});
  both.on_end({}, {});
  both.on_exit({}, "");
  both.on_phase("");
  both.on_stopping();
  both.on_tick();
  EXPECT_EQ(first.calls, 7);
  EXPECT_EQ(second.calls, 7);
}

}  // namespace
}  // namespace retort::test
