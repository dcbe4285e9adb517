// What an engine that the run starts gets of us, and how it ends.
#include "launch/ranks/engine_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "base/process/owned_fd.h"
#include "base/process/start.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/killed_process.h"
#include "tests/support/process_state.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::launch {
namespace {

using namespace std::chrono_literals;
using test::error_of;

class EngineProcessTest : public test::FolderTest {
 protected:
  EngineProcess shell(const std::string& script) { return {{"sh", "-c", script}, log()}; }
  std::filesystem::path log() const { return folder_ / "engine.log"; }
  // When it has ended.
  std::string printed(const std::string& script) {
    const EngineProcess process = shell(script + "; echo END");
    std::string text;
    EXPECT_TRUE(test::wait_until([&] {
      text = read_file(log());
      return text.ends_with("END\n");
    }));
    return text;
  }
};

TEST_F(EngineProcessTest, InheritsNoDescriptorButItsOutput) {
  const OwnedFd ours(::open("/dev/null", O_RDONLY));  // without O_CLOEXEC, as a library's
  ASSERT_GE(ours.get(), 3);
  const std::string link = "/proc/$$/fd/" + std::to_string(ours.get());
  EXPECT_EQ(printed("test -e " + link + " && echo inherited"), "END\n");
}

TEST_F(EngineProcessTest, NoSignalIsBlockedOrIgnored) {
  sigset_t one, before;
  ::sigemptyset(&one);
  ::sigaddset(&one, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &one, &before);
  const auto handler = ::signal(SIGINT, SIG_IGN);
  const EngineProcess process({"grep", "-E", "SigBlk|SigIgn", "/proc/self/status"}, log());
  ::signal(SIGINT, handler);
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, &before, &after);
  EXPECT_TRUE(::sigismember(&after, SIGTERM)) << "ours is as it was";
  EXPECT_FALSE(::sigismember(&after, SIGUSR1));
  const std::string none = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n";
  EXPECT_TRUE(test::wait_until([&] { return read_file(log()).size() >= none.size(); }));
  EXPECT_EQ(read_file(log()), none);
}

TEST_F(EngineProcessTest, EndsWithAllThatItStarted) {
  pid_t child = 0;
  {
    const EngineProcess process =
        shell("sleep 1000 & echo $! > " + (folder_ / "pid").string() + "; echo END; wait");
    EXPECT_TRUE(test::wait_until(
        [&] { return std::filesystem::exists(log()) && read_file(log()) == "END\n"; }));
    child = std::stoi(read_file(folder_ / "pid"));
    EXPECT_EQ(::kill(child, 0), 0);
  }
  // Whoever is its parent then may not have reaped it yet.
  EXPECT_TRUE(test::wait_until([&] {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/" + std::to_string(child) + "/exe", error).empty();
  }));
}

// As a role that the system kills: no destructor runs. The engine leads a group of its own.
TEST_F(EngineProcessTest, EndsWithAProcessThatIsKilled) {
  const std::filesystem::path file = folder_ / "pids";
  test::KilledProcess role(
      [&] { return shell("sleep 1000 & echo $$ $! > " + file.string() + "; echo END; wait"); });
  EXPECT_TRUE(test::wait_until(
      [&] { return std::filesystem::exists(log()) && read_file(log()) == "END\n"; }));
  pid_t engine = -1;
  pid_t helper = -1;
  std::istringstream(read_file(file)) >> engine >> helper;
  ASSERT_GT(helper, 0);
  ASSERT_TRUE(role.has_worked());
  role.kill();
  for (const pid_t pid : {engine, helper})
    EXPECT_TRUE(test::wait_until([&] { return !test::process_runs(pid); })) << pid;
}

// A debugger holds what is left of the engine, as a driver may: its parent cannot reap it, SIGKILL
// or not, and goes on. An ancestor of the engine may trace it wherever anybody may.
TEST_F(EngineProcessTest, OneThatSigkillDoesNotEndIsLeftBehind) {
  const std::filesystem::path traced = folder_ / "traced";
  test::KilledProcess role([&] {
    {
      const EngineProcess process({"sh", "-c", "echo $$; exec sleep 1000"}, log(),
                                  {.after_sigterm = 100ms, .after_sigkill = 300ms});
      while (!std::filesystem::exists(traced))
        std::this_thread::sleep_for(5ms);
    }
    ::_exit(0);
    return 0;
  });
  ASSERT_TRUE(test::wait_until(
      [&] { return std::filesystem::exists(log()) && read_file(log()).ends_with('\n'); }));

  const pid_t engine = std::stoi(read_file(log()));
  if (::ptrace(PTRACE_SEIZE, engine, nullptr, nullptr) != 0)
    GTEST_SKIP() << "no process may be traced here: " << std::strerror(errno);
  put(traced, "");
  siginfo_t end{};
  EXPECT_TRUE(test::wait_until([&] {
    return ::waitid(P_PID, static_cast<id_t>(role.pid()), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           end.si_pid == role.pid();
  }));
  EXPECT_EQ(end.si_code, CLD_EXITED);
  EXPECT_EQ(end.si_status, 0);
  EXPECT_EQ(test::process_state(engine), 'Z') << "dead, and the debugger's";
  reap(engine);
}

// As a shell takes it, and execvp.
TEST_F(EngineProcessTest, AScriptNeedNotNameAnInterpreter) {
  const std::filesystem::path script = folder_ / "script";
  put(script, "echo \"$0 $1\"; echo END\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const EngineProcess process({script.string(), "a word"}, log());
  const std::string expected = script.string() + " a word\nEND\n";
  EXPECT_TRUE(test::wait_until([&] { return read_file(log()).size() >= expected.size(); }));
  EXPECT_EQ(read_file(log()), expected);
}

TEST_F(EngineProcessTest, SaysHowItEnded) {
  EngineProcess process = shell("exit 7");
  EXPECT_TRUE(test::wait_until([&] {
    try {
      process.check_running();
      return false;
    } catch (const Error& error) {
      return error.message().find("exited with code 7") != std::string::npos;
    }
  }));
}

// Somebody else reaped it: its end is known, how it came is not.
TEST_F(EngineProcessTest, OneThatAnotherReapedHasEnded) {
  EngineProcess process = shell("exit 0");
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_ALL, 0, &info, WEXITED), 0);
  EXPECT_EQ(error_of([&] { process.check_running(); }).code(), ErrorCode::kUnavailable);
}

TEST_F(EngineProcessTest, SaysWhatCannotBe) {
  EXPECT_NE(error_of([&] { EngineProcess({"no-such-program"}, log()); })
                .message()
                .find("'no-such-program' cannot be started"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { EngineProcess({"true"}, folder_ / "none/engine.log"); }).message().find("log"),
      std::string::npos);
}

}  // namespace
}  // namespace retort::launch
