#include "tests/launch/supervision/supervised_child.h"

#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/file.h"
#include "launch/process/child_context.h"
#include "launch/process/signal_catcher.h"
#include "launch/run_folder/driving_lock.h"
#include "launch/supervision/launcher_link.h"

namespace retort::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// Long enough that a test which needs it to pass has failed anyway.
constexpr milliseconds kForever{100'000};
// Of a process without anything to save, whose launcher is lost.
constexpr milliseconds kShortGrace{300};

struct Child {
  launch::ChildContext context;
  launch::SignalCatcher& signals;
  launch::LauncherLink& launcher;
  std::atomic<bool>& lost;
  std::atomic<bool>& asked;  // over the connection
  fs::path folder;
  std::string more;
  std::optional<launch::DrivingLock> lock = std::nullopt;

  // From now on there is something to save, as in a student that trains.
  void drive() {
    lock.emplace(folder);
    launcher.set_grace(context.stop_timeout);
  }
  bool stop_requested() const { return signals.any() || lost || asked; }
  void wait_for_stop() const {
    const Deadline deadline = Deadline::after(kForever);
    while (!stop_requested() && !deadline.expired())
      std::this_thread::sleep_for(milliseconds(5));
  }
  // A file that the test makes.
  void wait_for(const std::string& name) const {
    const Deadline deadline = Deadline::after(kForever);
    while (!fs::exists(folder / name) && !deadline.expired())
      std::this_thread::sleep_for(milliseconds(5));
  }
  void leave(const std::string& name, const std::string& text) const {
    write_file_atomically(folder / name, text);
  }
  std::string name() const { return context.role + "-" + std::to_string(context.rank); }
};

[[noreturn]] void sleep_forever() {
  for (;;)
    std::this_thread::sleep_for(std::chrono::seconds(1));
}

int serve(Child& child) {
  child.launcher.report({"serving", 0, "", ""});
  child.wait_for_stop();
  child.leave("stopped-" + child.name(), child.lost ? "lost" : "asked");
  return 0;
}

// Serves, and would not hear a signal.
int deaf(Child& child) {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGTERM, &ignore, nullptr);
  return serve(child);
}

// Says in which of its lives it serves. In every life after the first it fails to load instead, or
// in the first it loads for ever, if `more` says so.
int serve_again(Child& child) {
  const int64_t restart = child.context.restart;
  if (restart > 0 && child.more == "breaks") return 1;
  if (restart == 0 && child.more == "loads") {
    child.launcher.report({"loading", 0, "", ""});
    sleep_forever();
  }
  child.leave("life-" + child.name(), std::to_string(restart));
  return serve(child);
}

int finish(Child& child) {
  std::cout << "threads " << std::getenv("OMP_NUM_THREADS") << " secret of "
            << child.context.secret.size() << std::endl;
  return 0;
}

// A driver that works until it is asked to stop, then saves; a signal that does not come from its
// launcher tells it that it is done.
int train(Child& child) {
  child.drive();
  child.launcher.report({"training", 1, "", ""});
  child.wait_for_stop();
  child.leave("saved-" + child.name(), "");
  const int code = std::atoi(child.more.c_str());
  if (code == 0 && !child.asked && !child.lost) child.launcher.report({"done", 1, "", ""});
  return code;
}

// "file text": a driver that is done saving once another process left that text.
int wait_for_life(Child& child) {
  std::istringstream words(child.more);
  std::string file, text;
  words >> file >> text;
  child.drive();
  child.launcher.report({"training", 1, "", ""});
  child.wait_for_stop();
  const Deadline deadline = Deadline::after(kForever);
  while (!deadline.expired()) {
    if (fs::exists(child.folder / file) && read_file(child.folder / file) == text) return 0;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return 1;
}

// A driver that takes longer to save than a process has that has nothing to save, and says whether
// it was served to the end.
int save_slowly(Child& child) {
  child.drive();
  child.launcher.report({"training", 1, "", ""});
  child.wait_for_stop();
  const fs::path alone = child.folder / "stopped-teacher-0";
  const Deadline saved = Deadline::after(2 * kShortGrace);
  while (!fs::exists(alone) && !saved.expired())
    std::this_thread::sleep_for(milliseconds(5));
  child.leave("saved-" + child.name(), fs::exists(alone) ? "alone" : "served");
  return 0;
}

// A driver that says how it ends once it was asked to stop.
int ends_as(Child& child) {
  child.launcher.report({"training", 1, "", ""});
  child.wait_for_stop();
  child.launcher.report({child.more, 2, "", ""});
  return 0;
}

// "said ends": a driver that says that it is done once the first file is there, and ends with the
// second, whoever asks it to end before.
int done_when(Child& child) {
  std::istringstream words(child.more);
  std::string said, ends;
  words >> said >> ends;
  child.launcher.report({"training", 1, "", ""});
  child.wait_for(said);
  child.launcher.report({"done", 2, "", ""});
  child.wait_for(ends);
  return 0;
}

// A driver whose train.on_divergence is stop; rank 0 says why.
int diverge(Child& child) {
  child.launcher.report({.state = "diverged",
                         .step = 2,
                         .message = child.context.rank == 0 ? "the loss has diverged" : "",
                         .error = "",
                         .warning = child.context.rank == 0});
  return 0;
}

// A driver whose train.max_time is over.
int time_is_up(Child& child) {
  child.launcher.report({"stopped", 2, "checkpoint saved at step 2", ""});
  return 0;
}

// As a rank says it: Error::what().
constexpr const char* kRecipeIsWrong = "the recipe is wrong [invalid_argument]";

// "kind", or "kind file": once that file is there.
int fail(Child& child) {
  std::istringstream words(child.more);
  std::string kind;
  std::string file;
  words >> kind >> file;
  if (!file.empty()) {
    child.launcher.report({"training", 1, "", ""});
    child.wait_for(file);
  }

  if (kind == "peer_lost") {
    child.launcher.report({"failed", 0, "lost teacher/0 [peer_lost]", "peer_lost"});
    return 1;
  }
  if (kind == "told") {
    child.launcher.report(
        {"failed", 0, kRecipeIsWrong, "invalid_argument", /*of_another_rank=*/true});
    return 2;
  }
  std::cerr << "line 1\nline 2\nthe recipe is wrong" << std::endl;
  child.launcher.report({"failed", 0, kRecipeIsWrong, "invalid_argument"});
  return 2;
}

int crash(Child& child) {
  child.launcher.report({"serving", 0, "", ""});
  child.wait_for("crash");
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  std::cerr << "about to crash" << std::endl;
  ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would report it and exit
  ::raise(SIGSEGV);
  return 0;
}

// Ignores every request, and has a child of its own.
int hang(Child& child) {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGTERM, &ignore, nullptr);
  pid_t pid = 0;
  const char* argv[] = {"sleep", "1000", nullptr};
  if (::posix_spawnp(&pid, "sleep", nullptr, nullptr, const_cast<char**>(argv), environ) != 0)
    return 9;
  child.leave("pids-" + child.name(), std::to_string(::getpid()) + " " + std::to_string(pid));
  child.launcher.report({child.more.empty() ? "serving" : child.more, 0, "", ""});
  sleep_forever();
}

pid_t start_in_own_group(const std::string& command) {
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const char* argv[] = {"sh", "-c", command.c_str(), nullptr};
  pid_t pid = -1;
  const int failed =
      ::posix_spawnp(&pid, "sh", nullptr, &attributes, const_cast<char**>(argv), environ);
  ::posix_spawnattr_destroy(&attributes);
  return failed == 0 ? pid : -1;
}

// Is done, but leaves two processes behind, one the child of the other.
int leave_behind(Child& child) {
  const std::string file = (child.folder / "left").string();
  const pid_t pid = start_in_own_group("sleep 1000 & echo $$ $! > " + file + ".new && mv " + file +
                                       ".new " + file + "; wait");
  if (pid < 0) return 9;
  child.launcher.report({"training", 1, "", ""});
  child.wait_for("left");
  child.launcher.report({"done", 1, "", ""});
  return 0;
}

// Its grandchild ends while the run goes on: somebody has to reap it.
int wait_for_reaper(Child& child) {
  const fs::path file = child.folder / "orphan";
  const pid_t shell = start_in_own_group("true & echo $! > " + file.string());
  if (shell < 0 || ::waitpid(shell, nullptr, 0) != shell) return 9;
  pid_t orphan = 0;
  std::ifstream(file) >> orphan;
  const Deadline deadline = Deadline::after(std::chrono::seconds(30));
  while (fs::exists("/proc/" + std::to_string(orphan)) && !deadline.expired())
    std::this_thread::sleep_for(milliseconds(5));
  return orphan > 0 && !deadline.expired() ? 0 : 5;
}

// Where is the secret? Neither in the arguments nor in the environment.
int look(Child& child) {
  std::string visible;
  for (const char* path : {"/proc/self/cmdline", "/proc/self/environ"}) {
    std::ifstream file(path, std::ios::binary);
    visible.append(std::istreambuf_iterator<char>(file), {});
  }
  const bool found = visible.find(child.context.secret) != std::string::npos;
  int open = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++open;
  }
  child.leave("look-" + child.name(), std::string(found ? "visible" : "hidden") + " " +
                                          std::to_string(::getpgid(0) == ::getpid()));
  // 0, 1, 2, the signal pipes, the connection, its loop's three, the folder being listed, and
  // little else.
  return open <= 14 ? 0 : 7;
}

int stopped(Child& child) {
  child.launcher.report({"serving", 0, "", ""});
  ::raise(SIGSTOP);
  child.wait_for_stop();
  child.leave("stopped-" + child.name(), "asked");
  return 0;
}

}  // namespace

int run_child(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode == "default-signals") {  // as a program that is still loading: no handler yet
    launch::LauncherLink launcher({.context = launch::read_child_context(), .on_lost = [] {}});
    launcher.report({"training", 0, "", ""});
    sleep_forever();
  }

  // As a role process begins.
  launch::SignalCatcher signals({SIGTERM});
  const launch::ChildContext context = launch::read_child_context();
  std::atomic<bool> lost{false};
  std::atomic<bool> asked{false};
  const fs::path folder = argc > 3 ? argv[3] : "";
  std::function<bool()> is_needed;
  if (context.role != "student") is_needed = [folder] { return launch::anyone_drives(folder); };
  launch::LauncherLink launcher(
      {.context = context,
       .on_lost = [&lost] { lost = true; },
       .on_stop = [&asked] { asked = true; },
       .is_needed = is_needed,
       .need_limit = context.stop_timeout,
       .grace = mode == "hang" || mode == "save-slowly" ? kShortGrace : milliseconds(10'000)});
  Child child{context, signals, launcher, lost, asked, folder, argc > 4 ? argv[4] : ""};

  // What it does until it ends.
  const std::map<std::string, int (*)(Child&)> modes{
      {"serve", serve},
      {"deaf", deaf},
      {"serve-again", serve_again},
      {"finish", finish},
      {"train", train},
      {"wait-for-life", wait_for_life},
      {"save-slowly", save_slowly},
      {"fail", fail},
      {"crash", crash},
      {"hang", hang},
      {"look", look},
      {"stopped", stopped},
      {"ends-as", ends_as},
      {"time-is-up", time_is_up},
      {"done-when", done_when},
      {"diverge", diverge},
      {"leave-behind", leave_behind},
      {"wait-for-reaper", wait_for_reaper},
  };
  const auto found = modes.find(mode);
  return found == modes.end() ? 99 : found->second(child);
}

}  // namespace retort::test
