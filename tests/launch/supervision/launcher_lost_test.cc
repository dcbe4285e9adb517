// The launcher is killed outright: its processes notice and end by themselves.
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

#include "tests/launch/supervision/supervisor_fixture.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

class LauncherLostTest : public SupervisorTest {
 protected:
  // Starts this program as a launcher of its own and waits until its children have said that they
  // are up.
  void start_launcher(const std::string& scene) {
    // Orphans become ours, so that their end can be waited for.
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe"), folder = folder_;
    const char* argv[] = {program.c_str(), "launcher", folder.c_str(), scene.c_str(), nullptr};
    ASSERT_EQ(::posix_spawn(&launcher_, program.c_str(), nullptr, nullptr, const_cast<char**>(argv),
                            environ),
              0);
    ASSERT_TRUE(wait_until([&] { return exists("up"); }));

    std::istringstream text(get(folder_ / "up"));
    for (pid_t pid; text >> pid;)
      pids_.push_back(pid);
    for (const pid_t pid : pids_)
      ASSERT_TRUE(process_runs(pid));
  }
  void kill_launcher() {
    ::kill(launcher_, SIGKILL);
    ::waitpid(launcher_, nullptr, 0);
  }
  // Waits for the end of a process that became ours; its status.
  static std::optional<int> end_of(pid_t pid) {
    int status = 0;
    if (!wait_until([&] { return ::waitpid(pid, &status, WNOHANG) == pid; })) return std::nullopt;
    return status;
  }

  pid_t launcher_ = 0;
  std::vector<pid_t> pids_;
};

TEST_F(LauncherLostTest, ChildrenStopAndTheStubbornOneEndsToo) {
  start_launcher("hang");
  ASSERT_EQ(pids_.size(), 3u);
  kill_launcher();

  // Two noticed and left by themselves.
  for (const size_t i : {0, 1}) {
    const auto status = end_of(pids_[i]);
    ASSERT_TRUE(status) << "an orphan stayed";
    EXPECT_TRUE(WIFEXITED(*status));
    EXPECT_EQ(WEXITSTATUS(*status), 0);
  }
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "lost");
  EXPECT_TRUE(exists("saved-student-0"));

  // The one that hangs was ended by its link's thread, with what it had started.
  const auto status = end_of(pids_[2]);
  ASSERT_TRUE(status) << "an orphan stayed";
  ASSERT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), SIGKILL);
  pid_t child = 0;
  pid_t grandchild = 0;
  std::istringstream(get(folder_ / "pids-teacher-1")) >> child >> grandchild;
  EXPECT_TRUE(end_of(grandchild)) << "an orphan's child stayed";
}

// The student saves for longer than a process has that has nothing to save, and needs its teacher
// for that.
TEST_F(LauncherLostTest, TheDriverSavesWhileItIsServed) {
  start_launcher("save");
  ASSERT_EQ(pids_.size(), 2u);
  kill_launcher();
  for (const pid_t pid : pids_) {
    const auto status = end_of(pid);
    ASSERT_TRUE(status) << "an orphan stayed";
    EXPECT_TRUE(WIFEXITED(*status));
  }
  ASSERT_TRUE(exists("saved-student-0")) << "it was ended before it had saved";
  EXPECT_EQ(get(folder_ / "saved-student-0"), "served");
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "lost");
}

TEST_F(LauncherLostTest, AServerDoesNotWaitForADriverForEver) {
  start_launcher("impatient");
  ASSERT_EQ(pids_.size(), 2u);
  const pid_t teacher = pids_[0];
  const pid_t student = pids_[1];
  ::kill(student, SIGSTOP);
  kill_launcher();
  const auto status = end_of(teacher);
  ::kill(student, SIGKILL);
  EXPECT_TRUE(end_of(student));
  ASSERT_TRUE(status) << "it waits for a driver that never ends";
  EXPECT_TRUE(WIFEXITED(*status));
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "lost");
}

// A launcher that stands still is as good as gone once the limit is over.
TEST_F(LauncherLostTest, ALauncherThatStandsStillIsLost) {
  start_launcher("frozen");
  ASSERT_EQ(pids_.size(), 2u);
  ::kill(launcher_, SIGSTOP);
  EXPECT_TRUE(wait_until([&] { return exists("saved-student-0") && exists("stopped-teacher-0"); }));
  kill_launcher();
  for (const pid_t pid : pids_)
    EXPECT_TRUE(end_of(pid)) << "an orphan stayed";
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "lost");
}

}  // namespace

// argv: <binary> launcher <folder> <scene>: a launcher with a few children; writes their pids into
// <folder>/up when all have reported.
int run_launcher(const std::filesystem::path& folder, const std::string& scene) {
  // Before any thread.
  launch::SignalCatcher signals({SIGINT, SIGTERM});
  const rpc::SupervisionTimes times = scene == "frozen"
                                          ? rpc::SupervisionTimes{Duration(100), Duration(5'000)}
                                          : rpc::SupervisionTimes{};
  rpc::RendezvousServer port({.name = {}, .run = "run", .secret = "secret"}, "auto", "0", times);
  launch::SupervisorOptions options;
  options.supervision = &port.supervision();
  launch::LocalBackend local(std::filesystem::read_symlink("/proc/self/exe"), /*hold_fd=*/-1);
  options.backend = &local;
  options.log_folder = folder / "logs";
  if (scene == "impatient") options.stop_timeout = Duration(300);
  const auto add = [&](const std::string& role, int64_t rank, const std::string& mode) {
    launch::ProcessSpec spec;
    spec.context = {.run = "run",
                    .role = role,
                    .rank = rank,
                    .store_host = port.host(),
                    .store_port = port.port(),
                    .secret = "secret",
                    .heartbeat_interval = times.interval,
                    .peer_timeout = times.limit};
    spec.driving = role == "student";
    spec.arguments = {"child", mode, folder.string(), mode == "train" ? "0" : ""};
    options.processes.push_back(spec);
  };
  add("teacher", 0, "serve");
  add("student", 0, scene == "save" ? "save-slowly" : "train");
  if (scene == "hang") add("teacher", 1, "hang");

  const size_t processes = options.processes.size();
  Script script;
  size_t ready = 0;
  script.status = [&](const std::string&, const std::string&) {
    if (++ready < processes) return;
    std::string pids;
    for (pid_t pid : script.pids)
      pids += std::to_string(pid) + " ";
    write_file_atomically(folder / "up", pids);
  };
  return launch::Supervisor(options, &script).run(signals).exit_code;
}

}  // namespace retort::test
