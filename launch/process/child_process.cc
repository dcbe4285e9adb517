#include "launch/process/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/process/start.h"
#include "launch/process/child_context.h"

namespace retort::launch {
namespace {

// The limit of open files is too low for what a start needs.
[[noreturn]] void refuse_without_descriptors() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  throw Error(ErrorCode::kResourceExhausted,
              std::string("a process cannot be started: ") + std::strerror(EMFILE) +
                  "; this one may open " + std::to_string(files.rlim_cur) +
                  " files and sockets, which is too few: raise the limit (`ulimit -Hn`, nofile in "
                  "/etc/security/limits.conf, LimitNOFILE of a service); `retort doctor RECIPE` "
                  "says how many the run needs");
}

[[noreturn]] void refuse_to_start(const SpawnOptions& options, int error) {
  if (error == EMFILE) refuse_without_descriptors();
  throw_start_error(
      "cannot start " + options.program.string() + " with its log in " + options.log.string(),
      {.error = error});
}

}  // namespace

ChildProcess::ChildProcess(const SpawnOptions& options) {
  const OwnedFd log(::open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0) refuse_to_start(options, errno);

  // The child inherits its output, and descriptors at numbers that it knows.
  const int out = options.output_fd >= 0 ? options.output_fd : log.get();
  const int err = options.errors_to_log ? log.get() : out;
  ProgramStart setup{.program = options.program.string(),
                     .arguments = {options.program.string()},
                     .environment = options.environment,
                     .descriptors = {options.input_fd, out, err}};
  setup.arguments.insert(setup.arguments.end(), options.arguments.begin(), options.arguments.end());
  static_assert(kHoldFd == STDERR_FILENO + 1);
  if (options.hold_fd >= 0) setup.descriptors.push_back(options.hold_fd);

  const StartedProgram started = start_program(setup);
  if (started.error != 0) refuse_to_start(options, started.error);
  pid_ = started.pid;

  // The pidfd is readable once the process has ended; without one nobody would notice.
  pidfd_ = OwnedFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (pidfd_.get() < 0) {
    const int failed = errno;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot watch a process: ") + std::strerror(failed));
  }
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(other.status_) {}

ChildProcess::~ChildProcess() {
  if (!running()) return;
  signal_group(SIGKILL);
  pollfd entry{pidfd_.get(), POLLIN, 0};
  // A process in the middle of a system call that cannot be interrupted is left to init after a
  // while.
  ::poll(&entry, 1, 5000);
  try_reap();
}

void ChildProcess::signal(int number) const {
  if (running()) ::kill(pid_, number);
}

void ChildProcess::signal_group(int number) const {
  if (running()) ::kill(-pid_, number);
}

bool ChildProcess::stopped() const {
  siginfo_t info{};
  return running() &&
         ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

std::optional<int> ChildProcess::try_reap() {
  if (status_ || pid_ <= 0) return status_;
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0)
    return std::nullopt;
  // The group is killed before the pid is given back, because afterwards the number may belong to
  // another process.
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = status;
  return status_;
}

bool is_launchers_variable(std::string_view name) {
  return name.starts_with("RETORT_") || name == "OMP_NUM_THREADS" || name == "MKL_NUM_THREADS" ||
         name == "OMP_WAIT_POLICY";
}

void restore_library_path() {
  const char* outer = std::getenv("RETORT_OUTER_LIBRARY_PATH");
  if (outer == nullptr) return;
  if (*outer != '\0')
    ::setenv("LD_LIBRARY_PATH", outer, 1);
  else
    ::unsetenv("LD_LIBRARY_PATH");
  ::unsetenv("RETORT_OUTER_LIBRARY_PATH");
}

std::vector<std::string> child_environment(int64_t threads,
                                           const std::map<std::string, std::string>& role_env) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    // Of the launcher's own variables these say something to its children, too.
    const bool inherited =
        name == "RETORT_LOG" || name == "RETORT_CUDA_MODULE" || name == "RETORT_OUTER_LIBRARY_PATH";
    if (is_launchers_variable(name) && !inherited) continue;
    if (role_env.contains(std::string(name))) continue;
    result.emplace_back(text);
  }
  for (const auto& [name, value] : role_env)
    result.push_back(name + "=" + value);
  result.push_back("OMP_NUM_THREADS=" + std::to_string(threads));
  result.push_back("MKL_NUM_THREADS=" + std::to_string(threads));
  result.push_back("OMP_WAIT_POLICY=passive");
  result.push_back(std::string(kContextVariable) + "=stdin");
  return result;
}

int64_t threads_per_process(int64_t wanted, int64_t num_processes) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const int64_t available =
      ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  return threads_per_process(wanted, available, num_processes);
}

int64_t threads_per_process(int64_t wanted, int64_t cores, int64_t num_processes) {
  if (wanted > 0) return wanted;
  return std::max<int64_t>(1, cores / std::max<int64_t>(1, num_processes));
}

}  // namespace retort::launch
