// How runs end without a signal: done, failed, hung.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <sstream>

#include "base/deadline.h"
#include "tests/launch/supervision/supervisor_fixture.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

TEST_F(SupervisorTest, DoneStopsTheServersAndSucceeds) {
  add("teacher", 0, "serve");
  add("teacher", 1, "serve");
  add("student", 0, "finish");
  add("student", 1, "finish");
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_FALSE(result.cause);
  EXPECT_TRUE(result.remarks.empty());
  EXPECT_EQ(result.report(), "");
  EXPECT_EQ(get(folder_ / "logs" / "student-1.log"), "threads 2 secret of 16\n");
}

TEST_F(SupervisorTest, ServersOutliveTheDriver) {
  add("teacher", 0, "serve");
  add("student", 0, "train", "0");
  when_ready(2, [&] { ::kill(script_.pids[1], SIGTERM); });  // its way to be done
  script_.end = [&](const std::string& role, const std::string&) {
    const bool early = role == "student" && exists("stopped-teacher-0");
    EXPECT_FALSE(early) << "the teacher ended before the student";
  };
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "asked");
}

TEST_F(SupervisorTest, ACrashIsNamedAndStopsTheOthers) {
  add("teacher", 0, "serve");
  add("teacher", 1, "crash");
  add("student", 0, "train", "0");
  when_ready(3, [&] { put(folder_ / "crash", ""); });
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "teacher/1");
  EXPECT_EQ(result.cause->signal, SIGSEGV);
  EXPECT_FALSE(result.cause->exit_code);
  EXPECT_EQ(result.cause->log_tail, (std::vector<std::string>{"about to crash"}));
  EXPECT_TRUE(result.consequences.empty()) << "the others ended as they were asked to";
  EXPECT_TRUE(exists("saved-student-0"));
  EXPECT_NE(result.report().find("teacher/1 failed first: it was killed by signal 11"),
            std::string::npos)
      << result.report();
}

TEST_F(SupervisorTest, ALostPeerIsAConsequenceEvenIfItShowsFirst) {
  add("teacher", 0, "crash");
  add("student", 0, "fail", "peer_lost first");
  when_ready(2, [&] { put(folder_ / "first", ""); });
  script_.end = [&](const std::string& role, const std::string&) {
    if (role == "student") put(folder_ / "crash", "");
  };
  const auto result = run();
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "teacher/0");
  ASSERT_EQ(result.consequences.size(), 1u);
  EXPECT_EQ(result.consequences[0].name(), "student/0");
  EXPECT_EQ(result.consequences[0].error, "peer_lost");
  EXPECT_EQ(result.exit_code, 1);
}

TEST_F(SupervisorTest, ALostPeerAloneIsTheCause) {
  add("teacher", 0, "serve");
  add("student", 0, "fail", "peer_lost first");
  when_ready(2, [&] { put(folder_ / "first", ""); });
  const auto result = run();
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "student/0");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(exists("stopped-teacher-0"));
}

TEST_F(SupervisorTest, AnErrorThatAnotherRankMetIsItsConsequence) {
  add("student", 0, "fail", "told first");
  add("student", 1, "fail", "wrong second");
  when_ready(2, [&] { put(folder_ / "first", ""); });
  script_.end = [&](const std::string&, const std::string&) { put(folder_ / "second", ""); };
  const auto result = run();
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "student/1");
  EXPECT_FALSE(result.cause->of_another_rank);
  ASSERT_EQ(result.consequences.size(), 1u);
  EXPECT_EQ(result.consequences[0].name(), "student/0");
  EXPECT_TRUE(result.consequences[0].of_another_rank);
  EXPECT_EQ(result.exit_code, 2);
}

// It says what went wrong; that a peer is lost says only that something did.
TEST_F(SupervisorTest, AnErrorThatAnotherRankMetIsNearerThanALostPeer) {
  add("student", 0, "fail", "peer_lost first");
  add("student", 1, "fail", "told second");
  when_ready(2, [&] { put(folder_ / "first", ""); });
  script_.end = [&](const std::string&, const std::string&) { put(folder_ / "second", ""); };
  const auto result = run();
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "student/1");
  EXPECT_EQ(result.exit_code, 2);
}

TEST_F(SupervisorTest, TheUsersMistakeKeepsItsExitCode) {
  put(folder_ / "logs" / "student-0.log", "of the run before\n");
  add("student", 0, "fail", "");
  add("student", 1, "train", "0");
  const auto result = run();
  EXPECT_EQ(result.exit_code, 2);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->exit_code, 2);
  EXPECT_EQ(result.cause->message, "the recipe is wrong [invalid_argument]");
  EXPECT_EQ(result.cause->log_tail,
            (std::vector<std::string>{"line 1", "line 2", "the recipe is wrong"}));
  EXPECT_NE(result.report().find("student/0 failed first: it exited with code 2"),
            std::string::npos)
      << result.report();
  EXPECT_NE(result.report().find("\n  the recipe is wrong [invalid_argument]\n"), std::string::npos)
      << result.report();  // the code stands there once
  EXPECT_EQ(result.report().find("| the recipe is wrong"), std::string::npos)
      << "the log says it again: " << result.report();
  EXPECT_NE(result.report().find("| line 2"), std::string::npos) << result.report();
}

TEST_F(SupervisorTest, AServerThatEndsEarlyIsAFailure) {
  add("teacher", 0, "finish");
  add("student", 0, "train", "0");
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "teacher/0");
  EXPECT_NE(result.cause->message.find("before the recipe was done"), std::string::npos);
}

TEST_F(SupervisorTest, AHungProcessAndItsChildrenAreKilledAfterTheGrace) {
  options_.failure_grace = Duration(200);
  add("teacher", 0, "hang");
  add("student", 0, "fail", "");
  // The student fails only once the teacher hangs.
  options_.processes[1].arguments[1] = "crash";
  script_.status = [&](const std::string& role, const std::string&) {
    if (role == "teacher") put(folder_ / "crash", "");
  };
  const auto result = run();
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "student/0");
  std::istringstream pids(get(folder_ / "pids-teacher-0"));
  pid_t child = 0, grandchild = 0;
  pids >> child >> grandchild;
  ASSERT_GT(grandchild, 0);
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (process_runs(grandchild) && !deadline.expired())
    ::usleep(5000);
  EXPECT_FALSE(process_runs(child));
  EXPECT_FALSE(process_runs(grandchild));
}

TEST_F(SupervisorTest, AServerThatHangsAtTheEndDoesNotFailTheRun) {
  options_.serving_timeout = Duration(200);
  add("teacher", 0, "hang");
  add("student", 0, "train", "0");
  when_ready(2, [&] { ::kill(script_.pids[1], SIGTERM); });
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  ASSERT_EQ(result.remarks.size(), 1u);
  EXPECT_EQ(result.remarks[0].find("teacher/0 did not end within 200ms"), 0u) << result.remarks[0];
}

// Each process waits for what the test has seen of the other, so that no time decides.
class LateFailure : public SupervisorTest {
 protected:
  // The teacher fails for good when the student says `word`, the student goes on when it has.
  launch::SupervisorResult run_until(const std::string& word, const std::string& student) {
    add("student", 0, "done-when", student);
    add("teacher", 0, "fail", "wrong fails");
    script_.status = [this, word](const std::string& role, const std::string& state) {
      if (role == "student" && state == word) write_file_atomically(folder_ / "fails", "");
    };
    script_.end = [this](const std::string& role, const std::string&) {
      if (role == "teacher") write_file_atomically(folder_ / "goes-on", "");
    };
    write_file_atomically(folder_ / "at-once", "");
    return run();
  }
};

TEST_F(LateFailure, AfterTheLastWordOfTheDriverIsARemark) {
  const auto result = run_until("done", "at-once goes-on");
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_FALSE(result.cause);
  ASSERT_EQ(result.remarks.size(), 1u);
  EXPECT_NE(result.remarks[0].find("teacher/0 exited with code 2 after the recipe was done"),
            std::string::npos)
      << result.remarks[0];
}

TEST_F(LateFailure, BeforeTheLastWordOfADriverThatIsDoneIsARemarkToo) {
  const auto result = run_until("training", "goes-on at-once");
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_FALSE(result.cause);
  ASSERT_EQ(result.remarks.size(), 1u);
  EXPECT_NE(result.remarks[0].find("teacher/0 exited with code 2"), std::string::npos)
      << result.remarks[0];
}

TEST_F(SupervisorTest, ADriverThatStaysBehindTheOthersIsAFailure) {
  options_.stop_timeout = Duration(200);
  add("student", 0, "train", "0");
  add("student", 1, "hang", "training");
  when_ready(2, [&] { ::kill(script_.pids[0], SIGTERM); });
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "student/1");
  EXPECT_EQ(result.cause->what(), "did not end in time and was killed");
}

TEST_F(SupervisorTest, AStoppedProcessCanObey) {
  add("teacher", 0, "stopped");
  add("student", 0, "train", "0");
  // Its report may have been held with it. The student is asked once: a second signal would meet
  // it while it ends, when it no longer catches any.
  script_.status = [&](const std::string& role, const std::string& state) {
    if (role != "student" || state != "training") return;
    EXPECT_TRUE(wait_until([&] { return process_state(script_.pids[0]) == 'T'; }));
    ::kill(script_.pids[1], SIGTERM);
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_TRUE(result.remarks.empty()) << result.remarks[0];
  EXPECT_TRUE(exists("stopped-teacher-0"));
}

TEST_F(SupervisorTest, TheRequestToStopNeedsNoSignal) {
  add("teacher", 0, "deaf");
  add("student", 0, "train", "0");
  when_ready(2, [&] { ::kill(script_.pids[1], SIGTERM); });
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_TRUE(result.remarks.empty()) << result.remarks[0];
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "asked");
}

TEST_F(SupervisorTest, AProcessThatStandsStillIsNamedAndNotEnded) {
  listen({.interval = Duration(100), .limit = Duration(5'000)});
  add("teacher", 0, "serve");
  add("student", 0, "train", "0");
  bool is_held = false;
  when_ready(2, [&] { is_held = ::kill(script_.pids[0], SIGSTOP) == 0; });
  std::vector<std::string> said;
  script_.phase = [&](const std::string& message) {
    if (!is_held || said.size() == 2 || !message.starts_with("teacher/0")) return;
    said.push_back(message);
    const bool is_silent = message.find("is silent") != std::string::npos;
    ::kill(script_.pids[is_silent ? 0 : 1], is_silent ? SIGCONT : SIGTERM);
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  ASSERT_GE(said.size(), 2u);
  EXPECT_EQ(said[0], "teacher/0 is silent: it stands still, or is cut off");
  EXPECT_EQ(said[1], "teacher/0 is heard again");
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "asked");
}

TEST_F(SupervisorTest, TheSecretIsNotInSight) {
  add("student", 0, "look");
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_EQ(get(folder_ / "look-student-0"), "hidden 1");
}

TEST_F(SupervisorTest, TheHeldDescriptorLivesAsLongAsAProcess) {
  const std::string lock = folder_ / "lock";
  put(lock, "");
  const int held = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  start_from(std::filesystem::read_symlink("/proc/self/exe"), held);
  const int other = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  add("student", 0, "train", "0");
  script_.status = [&](const std::string&, const std::string& state) {
    if (state != "training") return;  // the child says too that it is done
    ::close(held);
    EXPECT_EQ(::flock(other, LOCK_EX | LOCK_NB), -1) << "the child should hold the lock";
    ::kill(script_.pids[0], SIGTERM);
  };
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0) << "nobody is left who holds it";
  ::close(other);
}

TEST_F(SupervisorTest, AProgramThatIsNotThereLeavesNothingBehind) {
  add("student", 0, "train", "0");
  start_from(folder_ / "nothing");
  EXPECT_NE(message_of([&] { run(); }).find("nothing"), std::string::npos);
  EXPECT_TRUE(script_.pids.empty());
}

}  // namespace
}  // namespace retort::test
