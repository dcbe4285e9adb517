// Signals to the launcher: the first stops cleanly, the second at once.
#include <poll.h>
#include <unistd.h>

#include "tests/launch/supervision/supervisor_fixture.h"

namespace retort::test {
namespace {

class SignalTest : public SupervisorTest, public ::testing::WithParamInterface<int> {
 protected:
  // Sends a signal to this process, the launcher, once `count` processes have reported.
  void signal_when_ready(int count, int number) {
    when_ready(count, [number] { ::kill(::getpid(), number); });
  }
};

TEST_P(SignalTest, TheDriverSavesThenTheServersStop) {
  add("teacher", 0, "serve");
  add("student", 0, "train", "0");
  add("student", 1, "train", "0");
  signal_when_ready(3, GetParam());
  script_.end = [&](const std::string& role, const std::string&) {
    const bool early = role == "student" && exists("stopped-teacher-0");
    EXPECT_FALSE(early) << "the teacher was stopped before the student was done";
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, GetParam() == SIGINT ? 130 : 4) << result.report();
  EXPECT_EQ(result.signal, GetParam());
  EXPECT_TRUE(result.stopped_early);
  EXPECT_FALSE(result.killed);
  EXPECT_FALSE(result.cause);
  EXPECT_TRUE(exists("saved-student-0"));
  EXPECT_TRUE(exists("saved-student-1"));
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "asked");
}

TEST_P(SignalTest, ADriverThatCannotSaveFailsTheRun) {
  add("student", 0, "train", "1");
  signal_when_ready(1, GetParam());
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->exit_code, 1);
}

// Nor does it answer over its connection.
TEST_P(SignalTest, ADriverThatIsStillLoadingHasSavedNothing) {
  options_.answer_timeout = Duration(50);
  add("teacher", 0, "serve");
  add("student", 0, "default-signals");
  signal_when_ready(2, GetParam());
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1) << "4 and 130 promise a checkpoint";
  EXPECT_FALSE(result.cause) << result.report();
  ASSERT_EQ(result.remarks.size(), 1u);
  EXPECT_EQ(result.remarks[0], "student/0 ended before it could save a checkpoint");
}

TEST_P(SignalTest, TheSecondKillsAtOnce) {
  add("teacher", 0, "hang");
  add("student", 0, "hang", "training");
  signal_when_ready(2, GetParam());
  script_.phase = [&](const std::string& message) {
    if (message.find("stopping") != std::string::npos) ::kill(::getpid(), GetParam());
  };
  const auto result = run();
  EXPECT_TRUE(result.killed);
  EXPECT_EQ(result.exit_code, 1) << "nothing was saved";
  EXPECT_FALSE(result.cause);
}

TEST_P(SignalTest, ADriverThatDoesNotObeyIsKilledAtTheDeadline) {
  options_.stop_timeout = Duration(200);
  add("student", 0, "hang", "training");
  signal_when_ready(1, GetParam());
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_FALSE(result.killed);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->what(), "did not end in time and was killed");
}

TEST_P(SignalTest, DuringTheLastStepTheRunIsDone) {
  add("student", 0, "ends-as", "done");
  signal_when_ready(1, GetParam());
  const auto result = run();
  EXPECT_EQ(result.exit_code, GetParam() == SIGINT ? 130 : 0) << result.report();
  EXPECT_FALSE(result.stopped_early);
}

std::string signal_name(const testing::TestParamInfo<int>& info) {
  return info.param == SIGINT ? "Int" : info.param == SIGTERM ? "Term" : "Hup";
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         signal_name);

// Only the rank that got the signal knows of it.
TEST_F(SupervisorTest, ASignalToOneDriverCountsAsSigtermToTheLauncher) {
  add("teacher", 0, "serve");
  add("student", 0, "ends-as", "interrupted");
  script_.status = [&](const std::string& role, const std::string& state) {
    if (role == "student" && state == "training") ::kill(script_.pids[1], SIGTERM);
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 4) << result.report();
  EXPECT_EQ(result.signal, SIGTERM);
  EXPECT_TRUE(result.stopped_early);
}

TEST_F(SupervisorTest, ARunWhoseTimeIsUpWasStoppedEarly) {
  add("teacher", 0, "serve");
  add("student", 0, "time-is-up");
  add("student", 1, "time-is-up");
  const auto result = run();
  EXPECT_EQ(result.exit_code, 4) << result.report();
  EXPECT_EQ(result.signal, 0);
  EXPECT_TRUE(result.stopped_early);
}

TEST_F(SupervisorTest, ARunThatDivergedHasACodeOfItsOwn) {
  add("teacher", 0, "serve");
  add("student", 0, "diverge");
  add("student", 1, "diverge");
  const auto result = run();
  EXPECT_EQ(result.exit_code, 5) << result.report();
  EXPECT_TRUE(result.stopped_early);
  EXPECT_FALSE(result.cause);
  EXPECT_EQ(result.warning, "the loss has diverged");
}

TEST(SignalCatcherTest, KeepsOrderAndRestoresWhatWasBefore) {
  struct sigaction ignore {
  }, now{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGUSR1, &ignore, nullptr);
  {
    launch::SignalCatcher signals({SIGUSR1, SIGUSR2});
    EXPECT_FALSE(signals.any());
    EXPECT_FALSE(signals.next());
    // Handlers run on a thread of the catcher: the next signal is sent once the one before is
    // there.
    const auto send = [&](int number) {
      ::kill(::getpid(), number);
      pollfd readable{signals.fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&readable, 1, 20'000), 1);
      EXPECT_EQ(signals.next(), number);
    };
    send(SIGUSR2);
    send(SIGUSR1);
    sigset_t mask;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    EXPECT_TRUE(::sigismember(&mask, SIGUSR1)) << "a handler could run on this thread's stack";
    EXPECT_FALSE(signals.next());
    EXPECT_TRUE(signals.any());
  }
  ::sigaction(SIGUSR1, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_FALSE(::sigismember(&mask, SIGUSR1));
}

}  // namespace
}  // namespace retort::test
