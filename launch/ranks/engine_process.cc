#include "launch/ranks/engine_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/close_on_exec.h"
#include "base/process/exec_arguments.h"
#include "base/process/owned_fd.h"
#include "launch/backends/child_process.h"

extern char** environ;

namespace retort::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeToEnd = 10s;

// What is left are the user's variables; an engine chooses its own number of threads.
std::vector<std::string> engine_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!is_launchers_variable(text.substr(0, text.find('=')))) kept.emplace_back(text);
  }
  return kept;
}

struct Start {
  char** argv;
  char** environment;
  int log;
  int report;  // gets errno if it cannot be started; closed by exec
  pid_t parent;
};

// In the child of a process with threads: only what signal handlers may call.
[[noreturn]] void become_engine(const Start& start) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(127);

  // This process's handlers would run here, too; only then is anything let through.
  for (int number = 1; number < NSIG; ++number)
    ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  // A listener or a lock that the engine held would outlive this process.
  close_on_exec_from(STDERR_FILENO + 1);
  const int input = ::open("/dev/null", O_RDONLY);
  if (input >= 0 && ::dup2(input, STDIN_FILENO) >= 0 && ::dup2(start.log, STDOUT_FILENO) >= 0 &&
      ::dup2(start.log, STDERR_FILENO) >= 0)
    ::execvpe(start.argv[0], start.argv, start.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(start.report, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

EngineProcess::EngineProcess(const std::vector<std::string>& argv, const std::filesystem::path& log)
    : log_(log) {
  RETORT_CHECK(!argv.empty()) << "a command has at least a program";
  const auto fail = [&](int error) {
    throw Error(ErrorCode::kInvalidArgument, "the engine's command '" + argv[0] +
                                                 "' cannot be started: " + std::strerror(error));
  };
  const OwnedFd out(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  int ends[2];
  if (out.get() < 0)
    throw Error(ErrorCode::kUnavailable,
                "the engine's log " + log.string() + " cannot be opened: " + std::strerror(errno));
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(errno);
  OwnedFd reader(ends[0]), writer(ends[1]);

  std::vector<std::string> words = argv, variables = engine_environment();
  std::vector<char*> word_pointers = exec_pointers(words),
                     variable_pointers = exec_pointers(variables);
  const Start start{word_pointers.data(), variable_pointers.data(), out.get(), writer.get(),
                    ::getpid()};
  // Until the child has no handlers of ours.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  const int not_forked = errno;
  if (pid_ == 0) become_engine(start);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0) fail(not_forked);

  // Nothing comes if the program runs.
  writer.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(reader.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof error) return;
  ::waitpid(pid_, &status_, 0);
  pid_ = -1;
  fail(error);
}

bool EngineProcess::reap() {
  if (pid_ < 0) return true;
  const pid_t ended = ::waitpid(pid_, &status_, WNOHANG);
  if (ended == 0 || (ended < 0 && errno != ECHILD)) return false;
  ::kill(-pid_, SIGKILL);  // what it started
  pid_ = -1;
  return true;
}

EngineProcess::~EngineProcess() {
  if (reap()) return;
  ::kill(-pid_, SIGTERM);
  const Deadline deadline = Deadline::after(kTimeToEnd);
  while (!reap()) {
    if (deadline.expired()) ::kill(-pid_, SIGKILL);
    std::this_thread::sleep_for(20ms);
  }
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
