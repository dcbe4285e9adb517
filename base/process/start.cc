#include "base/process/start.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/close_on_exec.h"
#include "base/process/exec_arguments.h"
#include "base/process/owned_fd.h"

// The thread sanitizer makes every vfork a fork, which does not wait until exec.
#if defined(__SANITIZE_THREAD__)
#define RETORT_VFORK_IS_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RETORT_VFORK_IS_FORK 1
#endif
#endif

namespace retort {
namespace {

#ifdef RETORT_VFORK_IS_FORK
constexpr bool kVforkWaits = false;
#else
constexpr bool kVforkWaits = true;
#endif

// reap() looks again after longer and longer pauses, of at most this.
constexpr Duration kLongestLook = std::chrono::milliseconds(5);

// A Start is what a new process needs to become the program; all of it is made before the process
// exists.
struct Start {
  const char* program = nullptr;
  char** arguments = nullptr;
  char** environment = nullptr;
  const int* descriptors = nullptr;
  int* copies = nullptr;  // room for as many as there are descriptors
  int num_descriptors = 0;
  pid_t group = 0;
  bool ends_with_thread = false;
  bool blocks_signals = false;
  pid_t parent = -1;
  int failure = -1;  // takes the errno of what fails; closes at exec
};

[[noreturn]] void fail_to_start(int failure) {
  const int error = errno;
  [[maybe_unused]] const ssize_t wrote = ::write(failure, &error, sizeof error);
  ::_exit(127);
}

// Puts the descriptors into their places. False, with errno, if there is no room for them.
bool take_descriptors(const Start& start) {
  // All are copied out of the way first: the source of one may be the place of another.
  for (int i = 0; i < start.num_descriptors; ++i) {
    int from = start.descriptors[i];
    if (from == ProgramStart::kNothing) from = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (from < 0) return false;
    start.copies[i] = ::fcntl(from, F_DUPFD_CLOEXEC, start.num_descriptors);
    if (start.copies[i] < 0) return false;
  }

  // A copy that dup2 makes stays open at exec.
  for (int i = 0; i < start.num_descriptors; ++i)
    if (::dup2(start.copies[i], i) != i) return false;
  return true;
}

// Runs in the new process, from vfork to exec. Until exec it uses the memory of its parent, so it
// makes system calls and nothing else.
[[noreturn]] __attribute__((noinline)) void become(const Start& start) {
  // The pipe goes above the places of the program's descriptors, whatever this process had closed.
  const int failure = ::fcntl(start.failure, F_DUPFD_CLOEXEC, start.num_descriptors);
  if (failure < 0) fail_to_start(start.failure);
  if (::setpgid(0, start.group) != 0) fail_to_start(failure);

  // A parent that died before prctl sends no signal any more, but is not the parent any more
  // either.
  if (start.ends_with_thread) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail_to_start(failure);
    if (::getppid() != start.parent) ::_exit(127);
  }

  // The handlers go before the mask does: a handler of ours must not run here.
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal)
    ::sigaction(signal, &by_default, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  if (!start.blocks_signals) ::sigprocmask(SIG_SETMASK, &none, nullptr);

  // The program gets nothing else: a port or a connection of ours that it held, or that something
  // it leaves behind held, would outlive this process and keep the next one out.
  if (!take_descriptors(start)) fail_to_start(failure);
  close_on_exec_from(static_cast<unsigned>(start.num_descriptors));
  ::execve(start.program, start.arguments, start.environment);
  fail_to_start(failure);
}

// This stands apart from all else, because a function that calls vfork returns twice.
__attribute__((noinline)) pid_t new_process(const Start& start) {
  const pid_t pid = ::vfork();
  if (pid == 0) become(start);
  return pid;
}

// The new process has the mask of the thread that makes it: no handler of ours may run there. The
// errno of a process that could not be made is in `error`.
pid_t new_process_without_signals(const Start& start, int& error) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = new_process(start);
  error = pid < 0 ? errno : 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

// Returns the errno that the new process has left in the pipe, or 0 if it has left none and so
// runs.
int error_told(int told) {
  // It has run exec or ended by now, so its errno is there or never comes. An end of the pipe need
  // not come soon: the new process of another thread, on its way to exec, has our descriptors too.
  if (kVforkWaits) ::fcntl(told, F_SETFL, O_NONBLOCK);
  int error = 0;
  ssize_t got = -1;
  do {
    got = ::read(told, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) return error;
  return got == 0 || (got < 0 && errno == EAGAIN) ? 0 : EIO;
}

}  // namespace

StartedProgram start_program(const ProgramStart& options) {
  RETORT_CHECK(!options.arguments.empty()) << "a program has a name";
  RETORT_CHECK(options.descriptors.size() > STDERR_FILENO) << "a program has three streams";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {.error = errno};
  const OwnedFd told(ends[0]);
  OwnedFd failure(ends[1]);

  // All this is made before the process exists, which may then do nothing but system calls.
  const std::vector<char*> arguments = exec_pointers(options.arguments);
  std::vector<char*> environment;
  if (options.environment) environment = exec_pointers(*options.environment);
  std::vector<int> copies(options.descriptors.size());
  const Start plan{.program = options.program.c_str(),
                   .arguments = const_cast<char**>(arguments.data()),
                   .environment = options.environment ? environment.data() : environ,
                   .descriptors = options.descriptors.data(),
                   .copies = copies.data(),
                   .num_descriptors = static_cast<int>(copies.size()),
                   .group = options.group,
                   .ends_with_thread = options.ends_with_thread,
                   .blocks_signals = options.blocks_signals,
                   .parent = ::getpid(),
                   .failure = failure.get()};
  int error = 0;
  const pid_t pid = new_process_without_signals(plan, error);
  if (pid < 0) return {.error = error};

  // Our writing end is closed, so that the pipe can end with the new process.
  failure.reset();
  error = error_told(told.get());
  if (error == 0) return {.pid = pid};
  ::kill(pid, SIGKILL);  // it may run where its errno could not be read
  reap(pid);
  return {.error = error};
}

void throw_start_error(const std::string& what, const StartedProgram& started) {
  const int error = started.error;
  const bool room = error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
  const ErrorCode otherwise =
      started.is_guards ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument;

  std::string message = what + ": ";
  if (started.is_guards) message += "its guard /bin/sh: ";
  message += std::strerror(error);
  if (error == EMFILE) message += "; raise the limit of open files (`ulimit -Hn`)";
  throw Error(room ? ErrorCode::kResourceExhausted : otherwise, message);
}

bool reap(pid_t pid, Duration timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (Duration step(1);; step = std::min(step * 2, kLongestLook)) {
    const pid_t ended = ::waitpid(pid, nullptr, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) return true;
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(step);
  }
}

std::string path_in_environment(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0)
      return file;
  }
  return "";
}

}  // namespace retort
