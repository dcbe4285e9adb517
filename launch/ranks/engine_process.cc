#include "launch/ranks/engine_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/process/owned_fd.h"
#include "base/process/start.h"
#include "launch/process/child_process.h"

namespace retort::launch {
namespace {

using namespace std::chrono_literals;

// The variables that are left are the user's; an engine chooses its own number of threads.
std::vector<std::string> engine_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!is_launchers_variable(text.substr(0, text.find('=')))) kept.emplace_back(text);
  }
  return kept;
}

}  // namespace

EngineProcess::EngineProcess(const std::vector<std::string>& argv, const std::filesystem::path& log,
                             Patience patience)
    : log_(log), patience_(patience) {
  RETORT_CHECK(!argv.empty()) << "a command has at least a program";
  const OwnedFd out(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (out.get() < 0)
    throw Error(ErrorCode::kUnavailable,
                "the engine's log " + log.string() + " cannot be opened: " + std::strerror(errno));

  ProgramStart options{.program = path_in_environment(argv[0]),
                       .arguments = argv,
                       .environment = engine_environment(),
                       .descriptors = {ProgramStart::kNothing, out.get(), out.get()},
                       .ends_with_thread = true};
  StartedProgram started = start_guarded(options, guard_);
  if (started.error == ENOEXEC && !started.is_guards) {
    // A script that names no interpreter; a shell takes one for its own, too.
    options.arguments.front() = options.program;
    options.arguments.insert(options.arguments.begin(), "sh");
    options.program = "/bin/sh";
    started = start_guarded(options, guard_);
  }
  if (started.error != 0)
    throw_start_error("the engine's command '" + argv[0] + "' cannot be started", started);
  pid_ = started.pid;
}

bool EngineProcess::reap() {
  if (pid_ < 0) return true;
  const pid_t ended = ::waitpid(pid_, &status_, WNOHANG);
  if (ended == 0 || (ended < 0 && errno != ECHILD)) return false;
  // What the engine started ends with it. The number still means this group and no other: its guard
  // is in it, or is a zombie that only guard_ reaps.
  ::kill(-pid_, SIGKILL);
  pid_ = -1;
  return true;
}

EngineProcess::~EngineProcess() {
  if (reap()) return;
  ::kill(-pid_, SIGTERM);
  if (ends_by(Deadline::after(patience_.after_sigterm))) return;
  ::kill(-pid_, SIGKILL);
  if (ends_by(Deadline::after(patience_.after_sigkill))) return;

  // Whoever holds it decides when it ends; this process must not wait for that.
  RETORT_LOG(kWarning) << "the engine's process " << pid_ << " has not ended "
                       << format_duration(patience_.after_sigkill)
                       << " after SIGKILL and is left behind; what it printed is in "
                       << log_.string();
}

bool EngineProcess::ends_by(Deadline deadline) {
  while (!reap()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

void EngineProcess::check_running() {
  if (!reap()) return;
  const std::string how = WIFSIGNALED(status_)
                              ? "was killed by signal " + std::to_string(WTERMSIG(status_))
                              : "exited with code " + std::to_string(WEXITSTATUS(status_));
  throw Error(ErrorCode::kUnavailable,
              "the engine's command " + how + "; what it printed is in " + log_.string());
}

}  // namespace retort::launch
