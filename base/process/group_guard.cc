#include "base/process/group_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/error.h"

namespace retort {
namespace {

constexpr const char* kShell = "/bin/sh";
constexpr const char* kScript = "read -r line; kill -9 0";

}  // namespace

GroupGuard::GroupGuard(GroupGuard&& other) noexcept
    : life_(std::move(other.life_)), pid_(std::exchange(other.pid_, -1)) {}

GroupGuard::~GroupGuard() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  reap(pid_);
}

int GroupGuard::watch(pid_t group) {
  RETORT_CHECK(pid_ < 0 && group > 0);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
  const OwnedFd its_end(ends[0]);
  OwnedFd our_end(ends[1]);

  // Requests to end go to the whole group; the guard stays until the group is to be killed.
  ProgramStart options{.program = kShell,
                       .arguments = {"sh", "-c", kScript, "retort-group-guard"},
                       .environment = std::vector<std::string>(),
                       .group = group,
                       .blocks_signals = true};
  options.descriptors[STDIN_FILENO] = its_end.get();
  const StartedProgram started = start_program(options);
  if (started.error != 0) return started.error;
  pid_ = started.pid;
  life_ = std::move(our_end);
  return 0;
}

void GroupGuard::look() {
  if (pid_ < 0 || ::waitpid(pid_, nullptr, WNOHANG) == 0) return;
  pid_ = -1;
  life_.reset();
}

StartedProgram start_guarded(const ProgramStart& options, GroupGuard& guard) {
  RETORT_CHECK(options.group == 0);
  const StartedProgram started = start_program(options);
  if (started.error != 0) return started;
  const int error = guard.watch(started.pid);
  if (error == 0) return started;
  ::kill(-started.pid, SIGKILL);
  reap(started.pid);
  return {.error = error, .is_guards = true};
}

}  // namespace retort
