// What a process that is killed leaves of the programs that it had started.
#include "base/process/group_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <sstream>

#include "tests/support/folder_fixture.h"
#include "tests/support/killed_process.h"
#include "tests/support/process_state.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

class GroupGuardTest : public FolderTest {
 protected:
  static ProgramStart guarded_shell(const std::string& script) {
    return {.program = "/bin/sh", .arguments = {"sh", "-c", script}, .ends_with_thread = true};
  }
  static bool ends(pid_t pid) {
    return wait_until([pid] { return !process_runs(pid); });
  }
  // The numbers that a script writes into the file, once they are whole.
  std::vector<pid_t> pids(size_t count) const {
    std::vector<pid_t> found;
    EXPECT_TRUE(wait_until([&] {
      found.clear();
      if (!std::filesystem::exists(folder_ / "pids")) return false;
      std::istringstream text(get(folder_ / "pids"));
      for (std::string word; text >> word && word != "end";)
        found.push_back(std::stoi(word));
      return found.size() == count;
    }));
    return found;
  }
  // A process that starts the script, which knows the folder as $0.
  KilledProcess employer(const std::string& script) const {
    return KilledProcess([&] {
      ProgramStart options = guarded_shell(script);
      options.arguments.push_back(folder_);
      auto guard = std::make_unique<GroupGuard>();
      if (start_guarded(options, *guard).error != 0) ::_exit(1);
      return guard;
    });
  }
};

// The first process of the group has a signal for it from the system, the helpers have not.
TEST_F(GroupGuardTest, AProcessThatIsKilledLeavesNothingOfTheGroup) {
  KilledProcess student = employer(
      "sleep 1000 & helper=$!; (sleep 1000 & echo $! > $0/orphan)\n"
      "echo $$ $helper $(cat $0/orphan) end > $0/pids; wait");
  const std::vector<pid_t> started = pids(3);
  ASSERT_EQ(started.size(), 3u);
  for (const pid_t pid : started)
    EXPECT_TRUE(process_runs(pid)) << pid;

  ASSERT_TRUE(student.has_worked());
  student.kill();
  for (const pid_t pid : started)
    EXPECT_TRUE(ends(pid)) << pid;
}

// Of the program the helper alone is left: the guard still ends it.
TEST_F(GroupGuardTest, TheProgramMayHaveEndedBefore) {
  KilledProcess student = employer("sleep 1000 & echo $$ $! end > $0/pids");
  const std::vector<pid_t> started = pids(2);
  ASSERT_EQ(started.size(), 2u);
  EXPECT_TRUE(ends(started[0]));
  EXPECT_TRUE(process_runs(started[1]));
  ASSERT_TRUE(student.has_worked());
  student.kill();
  EXPECT_TRUE(ends(started[1]));
}

// docs/hosts.md says so.
TEST_F(GroupGuardTest, ADaemonIsOutOfItsReach) {
  KilledProcess student =
      employer("setsid sh -c 'echo $$ '$$' end > $0/pids; sleep 1000' $0 & wait");
  const std::vector<pid_t> started = pids(2);
  ASSERT_EQ(started.size(), 2u);
  ASSERT_TRUE(student.has_worked());
  student.kill();
  EXPECT_TRUE(ends(started[1]));
  EXPECT_TRUE(process_runs(started[0]));
  ::kill(-started[0], SIGKILL);
}

TEST_F(GroupGuardTest, ARequestToEndLeavesTheGuard) {
  GroupGuard guard;
  const StartedProgram started =
      start_guarded(guarded_shell("trap '' TERM; sleep 1000; sleep 1000"), guard);
  ASSERT_EQ(started.error, 0);
  EXPECT_EQ(::getpgid(guard.pid()), started.pid);
  // At once: its shell may not have begun yet.
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2})
    ::kill(-started.pid, signal);
  const std::string status = get("/proc/" + std::to_string(guard.pid()) + "/status");
  const uint64_t blocked = std::stoull(status.substr(status.find("SigBlk:") + 7), nullptr, 16);
  EXPECT_TRUE(blocked >> (SIGTERM - 1) & 1) << status;
  guard.look();
  EXPECT_GT(guard.pid(), 0);
  EXPECT_TRUE(process_runs(guard.pid()));

  ::kill(-started.pid, SIGKILL);
  reap(started.pid);
}

TEST_F(GroupGuardTest, OneThatSomebodyKilledIsReaped) {
  GroupGuard guard;
  const StartedProgram started = start_guarded(guarded_shell("sleep 1000"), guard);
  ASSERT_EQ(started.error, 0);
  ::kill(guard.pid(), SIGKILL);
  EXPECT_TRUE(wait_until([&] {
    guard.look();
    return guard.pid() < 0;
  }));
  EXPECT_TRUE(process_runs(started.pid));
  ::kill(-started.pid, SIGKILL);
  reap(started.pid);
}

// Short of one descriptor more or less, in each place that needs one.
TEST_F(GroupGuardTest, WithoutAGuardThereIsNoProgram) {
  const auto num_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = num_descriptors();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  StartedProgram started{.error = EMFILE};
  int guards_failed = 0;

  // One descriptor more each time, until both the program and its guard have enough.
  {
    GroupGuard guard;
    for (rlimit few{static_cast<rlim_t>(before), limit.rlim_max};; ++few.rlim_cur) {
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
      started = start_guarded(guarded_shell("sleep 1000"), guard);
      ::setrlimit(RLIMIT_NOFILE, &limit);
      if (started.error != EMFILE) break;
      guards_failed += started.is_guards ? 1 : 0;
      EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
      EXPECT_EQ(num_descriptors(), before);
    }

    ASSERT_EQ(started.error, 0);
    ::kill(-started.pid, SIGKILL);
    reap(started.pid);
  }

  // In between the guard alone was short of one; nothing is left of any try.
  EXPECT_GT(guards_failed, 0) << "the guard needs one more than the program";
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "the guard is left";
  EXPECT_EQ(num_descriptors(), before);
}

}  // namespace
}  // namespace retort::test
