#include "base/process/group_guard.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/process/pipe.h"

namespace retort {
namespace {

constexpr const char* kShell = "/bin/sh";
// Requests to end go to the whole group; the guard stays until the group is to be killed.
constexpr const char* kScript = "trap '' HUP INT QUIT TERM USR1 USR2; read -r line; kill -9 0";

}  // namespace

GroupGuard::GroupGuard(GroupGuard&& other) noexcept
    : life_(std::move(other.life_)), pid_(std::exchange(other.pid_, -1)) {}

GroupGuard::~GroupGuard() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  reap(pid_);
}

int GroupGuard::watch(pid_t group) try {
  RETORT_CHECK(pid_ < 0 && group > 0);
  Pipe pipe = make_pipe();
  ProgramStart options{.program = kShell,
                       .arguments = {"sh", "-c", kScript, "retort-group-guard"},
                       .environment = std::vector<std::string>(),
                       .group = group};
  options.descriptors[STDIN_FILENO] = pipe.out.get();
  const StartedProgram started = start_program(options);
  if (started.error != 0) return started.error;
  pid_ = started.pid;
  life_ = std::move(pipe.in);
  return 0;
} catch (const Error&) {
  return EMFILE;  // no room for one more pipe
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
  return {.error = error};
}

}  // namespace retort
