#include "launch/join/first_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "base/error.h"
#include "launch/process/signal_catcher.h"

namespace retort::launch {
namespace {

// Reaps all that have ended; the status of `child` once that has.
bool reap_ended(pid_t child, int& status) {
  bool has_ended = false;
  int one = 0;
  for (pid_t pid = ::waitpid(-1, &one, WNOHANG); pid > 0; pid = ::waitpid(-1, &one, WNOHANG)) {
    if (pid != child) continue;
    has_ended = true;
    status = one;
  }
  return has_ended;
}

// Does the duties of a container's first process until the child has ended. This process ends with
// it, and so does all else in the container.
[[noreturn]] void serve_container(pid_t child) {
  sigset_t awaited;
  ::sigemptyset(&awaited);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP})
    ::sigaddset(&awaited, signal);

  for (;;) {
    int status = 0;
    if (reap_ended(child, status))
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    // A terminal's Ctrl-C comes from the kernel and reaches the child as well, which must not take
    // it for two.
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&awaited, &info);
    if (signal > 0 && signal != SIGCHLD && info.si_code != SI_KERNEL) ::kill(child, signal);
  }
}

}  // namespace

void leave_first_process() {
  if (::getpid() != 1) return;
  // SIGCHLD is held, so that none comes between a look at the children and the wait for the next
  // signal.
  hold_signals({SIGCHLD});
  const pid_t child = ::fork();
  if (child < 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot start a process: ") + std::strerror(errno));
  if (child > 0) serve_container(child);
  release_signals({SIGCHLD});
}

}  // namespace retort::launch
