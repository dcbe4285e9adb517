// What a program that is started has of us, and what we are told.
#include "base/process/start.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "base/process/pipe.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

class StartTest : public FolderTest {
 protected:
  // Nothing that was started may leave a descriptor or a child behind.
  void SetUp() override { descriptors_ = num_descriptors(); }
  void TearDown() override {
    EXPECT_EQ(num_descriptors(), descriptors_);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
  }
  static int64_t num_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  }

  static ProgramStart shell(const std::string& script) {
    return {.program = "/bin/sh", .arguments = {"sh", "-c", script}};
  }
  // As waitpid has it.
  static int status_of(const StartedProgram& started) {
    EXPECT_EQ(started.error, 0);
    int status = -1;
    EXPECT_EQ(::waitpid(started.pid, &status, 0), started.pid);
    return status;
  }
  static int exit_code(const ProgramStart& options) {
    const int status = status_of(start_program(options));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // What it writes to its stdout until it has ended.
  static std::string printed(ProgramStart options) {
    Pipe pipe = make_pipe();
    options.descriptors[STDOUT_FILENO] = pipe.in.get();
    const StartedProgram started = start_program(options);
    pipe.in.reset();
    std::string text;
    char byte = 0;
    while (::read(pipe.out.get(), &byte, 1) == 1)
      text += byte;
    status_of(started);
    return text;
  }

 private:
  int64_t descriptors_ = 0;
};

TEST_F(StartTest, ArgumentsAndAnExitCode) {
  EXPECT_EQ(printed({.program = "/bin/sh", .arguments = {"name", "-c", "echo $0 $1", "a", "b c"}}),
            "a b c\n");
  EXPECT_EQ(exit_code(shell("exit 7")), 7);
}

TEST_F(StartTest, WithoutDescriptorsOfOursItsStreamsAreEmpty) {
  EXPECT_EQ(exit_code(shell("for fd in 0 1 2; do\n"
                            "  test \"$(readlink /proc/$$/fd/$fd)\" = /dev/null || exit 1\n"
                            "done; read line && exit 2; echo word")),
            0);
}

// Two files, each at the number of the other.
TEST_F(StartTest, DescriptorsAreAtTheirPlaces) {
  put(folder_ / "one", "1");
  put(folder_ / "two", "2");
  const OwnedFd one(::open((folder_ / "one").c_str(), O_RDONLY | O_CLOEXEC));
  const OwnedFd two(::open((folder_ / "two").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(one.get() > 2 && two.get() > one.get());

  ProgramStart options = shell("readlink /proc/$$/fd/" + std::to_string(one.get()) +
                               " /proc/$$/fd/" + std::to_string(two.get()));
  options.descriptors.resize(static_cast<size_t>(two.get()) + 1, ProgramStart::kNothing);
  options.descriptors[static_cast<size_t>(one.get())] = two.get();
  options.descriptors[static_cast<size_t>(two.get())] = one.get();
  EXPECT_EQ(printed(options),
            (folder_ / "two").string() + "\n" + (folder_ / "one").string() + "\n");
}

// Not all libraries ask for O_CLOEXEC.
TEST_F(StartTest, NoOtherDescriptorIsOpen) {
  const OwnedFd ours(::open("/dev/null", O_RDONLY));
  const OwnedFd high(::fcntl(ours.get(), F_DUPFD, 500));
  ASSERT_TRUE(ours.get() > 2 && high.get() >= 500);
  for (const int fd : {ours.get(), high.get()})
    EXPECT_EQ(exit_code(shell("test ! -e /proc/$$/fd/" + std::to_string(fd))), 0) << fd;
}

TEST_F(StartTest, TheEnvironmentIsOursOrAnother) {
  ASSERT_EQ(::setenv("RETORT_START_TEST", "ours", 1), 0);
  ProgramStart options = shell("echo $RETORT_START_TEST $OTHER");
  EXPECT_EQ(printed(options), "ours\n");
  options.environment = {"OTHER=another"};
  EXPECT_EQ(printed(options), "another\n");
  ::unsetenv("RETORT_START_TEST");
}

TEST_F(StartTest, ItLeadsAGroupOrIsInOne) {
  const StartedProgram leader = start_program(shell("exec sleep 1000"));
  ASSERT_EQ(leader.error, 0);
  EXPECT_EQ(::getpgid(leader.pid), leader.pid);
  ProgramStart options = shell("exec sleep 1000");
  options.group = leader.pid;
  const StartedProgram member = start_program(options);
  ASSERT_EQ(member.error, 0);
  EXPECT_EQ(::getpgid(member.pid), leader.pid);

  ::kill(-leader.pid, SIGKILL);
  EXPECT_EQ(status_of(leader), SIGKILL);
  EXPECT_EQ(status_of(member), SIGKILL);
  EXPECT_EQ(start_program(options).error, EPERM) << "there is no such group any more";
}

TEST_F(StartTest, SignalsAreAsASystemsAndOursAsTheyWere) {
  sigset_t one, before, after;
  ::sigemptyset(&one);
  ::sigaddset(&one, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &one, &before);
  const auto handler = ::signal(SIGINT, SIG_IGN);
  ProgramStart options{.program = path_in_environment("grep"),
                       .arguments = {"grep", "-E", "SigBlk|SigIgn", "/proc/self/status"}};
  EXPECT_EQ(printed(options), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
  ::signal(SIGINT, handler);
  ::pthread_sigmask(SIG_SETMASK, &before, &after);
  EXPECT_TRUE(::sigismember(&after, SIGTERM));
  EXPECT_FALSE(::sigismember(&after, SIGUSR1));
}

TEST_F(StartTest, AllSignalsMayBeBlocked) {
  ProgramStart options{.program = path_in_environment("grep"),
                       .arguments = {"grep", "SigBlk", "/proc/self/status"},
                       .blocks_signals = true};
  const std::string blocked = printed(options);
  ASSERT_TRUE(blocked.starts_with("SigBlk:\t")) << blocked;
  const uint64_t mask = std::stoull(blocked.substr(8), nullptr, 16);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGTSTP})
    EXPECT_TRUE(mask >> (signal - 1) & 1) << blocked;
}

TEST_F(StartTest, OneThatDoesNotEndIsNotWaitedForForEver) {
  const StartedProgram started = start_program(shell("exec sleep 1000"));
  ASSERT_EQ(started.error, 0);
  EXPECT_FALSE(reap(started.pid, std::chrono::milliseconds(20)));
  ::kill(started.pid, SIGKILL);
  EXPECT_TRUE(reap(started.pid));
  EXPECT_TRUE(reap(started.pid)) << "there is none any more";
}

TEST_F(StartTest, OneThatEndsWithTheThreadDoes) {
  StartedProgram tied, free;
  std::thread([&] {
    ProgramStart options = shell("exec sleep 1000");
    free = start_program(options);
    options.ends_with_thread = true;
    tied = start_program(options);
  }).join();
  EXPECT_EQ(status_of(tied), SIGKILL);
  EXPECT_EQ(::waitpid(free.pid, nullptr, WNOHANG), 0) << "it goes on";
  ::kill(-free.pid, SIGKILL);
  status_of(free);
}

TEST_F(StartTest, WhyItCannotBeStartedIsTold) {
  const auto error_of = [](const std::string& program) {
    const StartedProgram started = start_program({.program = program, .arguments = {program}});
    EXPECT_EQ(started.pid, -1);
    return started.error;
  };
  EXPECT_EQ(error_of(""), ENOENT);
  EXPECT_EQ(error_of("/no/such/program"), ENOENT);
  EXPECT_EQ(error_of(folder_), EACCES);
  put(folder_ / "text", "no program\n");
  std::filesystem::permissions(folder_ / "text", std::filesystem::perms::owner_all);
  EXPECT_EQ(error_of(folder_ / "text"), ENOEXEC);
}

TEST_F(StartTest, WhatIsThrownSaysWhoseFaultItIs) {
  const auto thrown = [](const StartedProgram& started) {
    return error_of([&] { throw_start_error("cannot start 'it'", started); });
  };
  EXPECT_EQ(thrown({.error = ENOENT}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(thrown({.error = ENOENT}).message(), "cannot start 'it': No such file or directory");
  for (const int room : {EAGAIN, ENOMEM, EMFILE, ENFILE})
    EXPECT_EQ(thrown({.error = room}).code(), ErrorCode::kResourceExhausted) << room;

  const Error guards = thrown({.error = ENOENT, .is_guards = true});
  EXPECT_EQ(guards.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(guards.message(), "cannot start 'it': its guard /bin/sh: No such file or directory");
}

// The lowest number is then the place of one of the program's streams.
TEST_F(StartTest, ThisProcessNeedNotHaveStreams) {
  const OwnedFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10));
  const OwnedFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10));
  ASSERT_TRUE(in.get() >= 10 && out.get() >= 10);
  ::close(STDIN_FILENO);
  ::close(STDOUT_FILENO);
  const StartedProgram missing =
      start_program({.program = "/no/such/program", .arguments = {"program"}});
  const StartedProgram good = start_program(shell("exit 3"));
  ::dup2(in.get(), STDIN_FILENO);
  ::dup2(out.get(), STDOUT_FILENO);
  EXPECT_EQ(missing.error, ENOENT);
  EXPECT_EQ(WEXITSTATUS(status_of(good)), 3);
}

TEST_F(StartTest, TooFewDescriptorsAreTold) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  int refused = 0;
  StartedProgram started{.error = EMFILE};
  // One more each time, until there are enough; both sides of the start have been short of one.
  for (rlimit few = before; started.error == EMFILE; ++refused) {
    few.rlim_cur = static_cast<rlim_t>(num_descriptors() + refused);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    started = start_program(shell("exit 0"));
    ::setrlimit(RLIMIT_NOFILE, &before);
  }
  EXPECT_GT(refused, 2);
  EXPECT_EQ(status_of(started), 0);
}

// Beside each other, none gets a descriptor of another's start.
TEST_F(StartTest, ThreadsStartProgramsAtOnce) {
  constexpr size_t kThreads = 8;
  constexpr int kStarts = 10;
  std::vector<int> good(kThreads);
  std::vector<std::thread> threads;
  for (int& count : good)
    threads.emplace_back([&count] {
      for (int i = 0; i < kStarts; ++i) {
        const std::string text =
            printed(shell("fd=3; while [ $fd -lt 64 ]; do\n"
                          "  test ! -e /proc/$$/fd/$fd || echo $fd\n"
                          "  fd=$((fd + 1))\ndone; echo end"));
        const int missing = start_program({.program = "/no/such", .arguments = {"program"}}).error;
        if (text == "end\n" && missing == ENOENT) ++count;
      }
    });
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(good, std::vector<int>(kThreads, kStarts));
}

}  // namespace
}  // namespace retort::test
