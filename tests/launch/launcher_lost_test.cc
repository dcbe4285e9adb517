// The launcher is killed outright: its processes notice and end by themselves.
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "base/deadline.h"
#include "tests/launch/supervisor_fixture.h"

namespace retort::test {
namespace {

class LauncherLostTest : public SupervisorTest {
 protected:
  // Starts this program as a launcher of its own and waits until its children have said that they
  // are up.
  void start_launcher() {
    // Orphans become ours, so that their end can be waited for.
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe"), folder = folder_;
    const char* argv[] = {program.c_str(), "launcher", folder.c_str(), nullptr};
    ASSERT_EQ(::posix_spawn(&launcher_, program.c_str(), nullptr, nullptr, const_cast<char**>(argv),
                            environ),
              0);
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!exists("up") && !deadline.expired())
      ::usleep(5000);
    ASSERT_TRUE(exists("up"));
  }
  pid_t launcher_ = 0;
};

TEST_F(LauncherLostTest, ChildrenStopAndTheStubbornOneEndsToo) {
  start_launcher();
  std::vector<pid_t> pids;
  std::istringstream text(get(folder_ / "up"));
  for (pid_t pid; text >> pid;)
    pids.push_back(pid);
  ASSERT_EQ(pids.size(), 3u);
  for (pid_t pid : pids)
    ASSERT_TRUE(process_runs(pid));
  ::kill(launcher_, SIGKILL);
  ::waitpid(launcher_, nullptr, 0);
  std::map<pid_t, int> ended;
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (ended.size() < pids.size() && !deadline.expired()) {
    int status = 0;
    for (pid_t pid : pids)
      if (!ended.contains(pid) && ::waitpid(pid, &status, WNOHANG) == pid) ended[pid] = status;
    ::usleep(5000);
  }
  ASSERT_EQ(ended.size(), pids.size()) << "an orphan stayed";
  // Two noticed and left by themselves; the one that hangs was ended by its life pipe's thread.
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "lost");
  EXPECT_TRUE(exists("saved-student-0"));
  EXPECT_EQ(WEXITSTATUS(ended[pids[0]]), 0);
  EXPECT_EQ(WEXITSTATUS(ended[pids[1]]), 0);
  EXPECT_TRUE(WIFEXITED(ended[pids[2]]));
  EXPECT_EQ(WEXITSTATUS(ended[pids[2]]), 1);
  // What the hanging one had started is not its life pipe's business; take it away.
  pid_t child = 0, grandchild = 0;
  std::istringstream(get(folder_ / "pids-teacher-1")) >> child >> grandchild;
  ::kill(grandchild, SIGKILL);
  ::waitpid(grandchild, nullptr, 0);
}

}  // namespace

// argv: <binary> launcher <folder>: a launcher with three children; writes their pids into
// <folder>/up when all have reported.
int run_launcher(const std::filesystem::path& folder) {
  launch::SupervisorOptions options;
  options.program = std::filesystem::read_symlink("/proc/self/exe");
  options.log_folder = folder / "logs";
  const auto add = [&](const std::string& role, int64_t rank, const std::string& mode) {
    launch::ProcessSpec spec;
    spec.context = {.run = "run", .role = role, .rank = rank};
    spec.driving = role == "student";
    spec.arguments = {"child", mode, folder.string(), mode == "train" ? "0" : ""};
    options.processes.push_back(spec);
  };
  add("teacher", 0, "serve");
  add("student", 0, "train");
  add("teacher", 1, "hang");
  Script script;
  int ready = 0;
  script.status = [&](const std::string&, const std::string&) {
    if (++ready < 3) return;
    std::string pids;
    for (pid_t pid : script.pids)
      pids += std::to_string(pid) + " ";
    write_file_atomically(folder / "up", pids);
  };
  launch::SignalCatcher signals({SIGINT, SIGTERM});
  return launch::Supervisor(options, &script).run(signals).exit_code;
}

}  // namespace retort::test
