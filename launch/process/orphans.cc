#include "launch/process/orphans.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "launch/process/process_stat.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::milliseconds kPollStep{5};
constexpr std::chrono::milliseconds kReap{10'000};

struct Process {
  pid_t pid = 0;
  pid_t group = 0;
};

// The children of this process, those that have ended and are not reaped among them.
std::vector<Process> children() {
  std::vector<Process> found;
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || rest != name.data() + name.size()) continue;
    std::ifstream file(entry->path() / "stat");
    const auto stat = read_process_stat(file);
    if (stat && stat->parent == ::getpid()) found.push_back({pid, stat->group});
  }
  return found;
}

}  // namespace

Orphans::Orphans(IsKnown is_known) : is_known_(std::move(is_known)) {
  // What is there already is none of the run's, such as a job of the shell that became this
  // program.
  spared_groups_.insert(::getpgrp());
  for (const Process& child : children()) {
    spared_.insert(child.pid);
    spared_groups_.insert(child.group);
  }
  ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Orphans::~Orphans() {
  if (!ended_) end_all(Deadline::after(kReap));
  if (before_ == 0) ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

void Orphans::reap() {
  for (;;) {
    // The look reaps nothing (WNOWAIT), because a known child belongs to whoever started it.
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    // The system would name a known child again and again, so the others wait until that is reaped.
    if (is_known_(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
    spared_.erase(info.si_pid);
  }
}

std::vector<pid_t> Orphans::living() const {
  std::vector<pid_t> pids;
  for (const Process& child : children()) {
    const bool spared = spared_.contains(child.pid) || spared_groups_.contains(child.group);
    if (!spared && !is_known_(child.pid)) pids.push_back(child.pid);
  }
  return pids;
}

std::vector<pid_t> Orphans::end_all(Deadline deadline) {
  ended_ = true;
  for (;;) {
    // The children of one that is killed become ours: the next round finds them.
    reap();
    std::vector<pid_t> left = living();
    if (left.empty() || deadline.expired()) return left;
    for (const pid_t pid : left)
      ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(kPollStep);
  }
}

}  // namespace retort::launch
