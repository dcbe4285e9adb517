#include "base/process/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <sstream>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/process/close_on_exec.h"

namespace retort {
namespace {

constexpr Duration kExitGrace = std::chrono::seconds(2);
constexpr Duration kPollStep = std::chrono::milliseconds(5);

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(ErrorCode::kResourceExhausted,
                  std::string("cannot make a pipe: ") + std::strerror(errno));
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    if (read >= 0) ::close(read);
    if (write >= 0) ::close(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
};

// The descriptor, made non-blocking; whoever had it does not close it any more.
int taken(int& fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  return std::exchange(fd, -1);
}

void close_fd(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

// What a new process needs to become the program; all of it is made before the process exists.
struct Program {
  std::string path;
  std::vector<char*> arguments;  // ends with a null pointer
  int in = -1;
  int out = -1;
  int err = -1;
  int failure = -1;  // takes the errno of a program that cannot be started; closes at exec
  pid_t parent = -1;
};

[[noreturn]] void fail_to_start(const Program& program) {
  const int error = errno;
  [[maybe_unused]] const ssize_t wrote = ::write(program.failure, &error, sizeof error);
  ::_exit(127);
}

// Makes `from` the descriptor `to`, which stays open at exec.
bool pass(int from, int to) {
  return from == to ? ::fcntl(to, F_SETFD, 0) == 0 : ::dup2(from, to) == to;
}

// The new process, from vfork to exec. Until exec it uses the memory of its parent, so it makes
// system calls and nothing else.
[[noreturn]] __attribute__((noinline)) void become(const Program& program) {
  // A parent that died before prctl sends no signal any more, but is not the parent any more
  // either.
  if (::setpgid(0, 0) != 0) fail_to_start(program);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail_to_start(program);
  if (::getppid() != program.parent) ::_exit(127);

  // First the handlers, then the mask: a handler of ours must not run here.
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal)
    ::sigaction(signal, &by_default, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  const bool passed = pass(program.in, STDIN_FILENO) && pass(program.out, STDOUT_FILENO) &&
                      pass(program.err, STDERR_FILENO);
  if (!passed) fail_to_start(program);

  // Nothing else: a port or a connection of ours that it held, or that something it leaves behind
  // held, would outlive this process and keep the next one out.
  close_on_exec_from(STDERR_FILENO + 1);
  ::execv(program.path.c_str(), program.arguments.data());
  fail_to_start(program);
}

// Apart from all else, because a function that calls vfork returns twice. Not fork, which would
// copy the page tables of a process that holds a model.
__attribute__((noinline)) pid_t start_process(const Program& program) {
  const pid_t pid = ::vfork();
  if (pid == 0) become(program);
  return pid;
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

struct Started {
  pid_t pid = -1;
  int error = 0;  // errno of a program that cannot be started
};

// Starts the program and waits until it runs or has failed. The calling thread blocks all signals.
Started start_program(Program program) {
  Pipe failure;
  program.failure = failure.write;
  program.parent = ::getpid();
  const pid_t pid = start_process(program);
  if (pid < 0) return {.error = errno};

  // The end of the pipe without an errno in it means that exec has closed it.
  close_fd(failure.write);
  int error = 0;
  ssize_t got = -1;
  while (got < 0) {
    got = ::read(failure.read, &error, sizeof error);
    if (got < 0 && errno != EINTR) break;
  }
  if (got == 0) return {.pid = pid};
  reap(pid);
  return {.error = got > 0 ? error : EIO};
}

}  // namespace

// The thread that starts the child and lives until it has been reaped. PR_SET_PDEATHSIG follows
// the thread that started a process, not that thread's process: a child started by a thread that
// ends would be killed there and then.
class Child::Keeper {
 public:
  explicit Keeper(Program program) {
    std::promise<Started> started;
    std::future<Started> result = started.get_future();
    thread_ = std::thread([program = std::move(program), started = std::move(started),
                           released = release_.get_future()]() mutable {
      // No handler of ours may run in a process that is about to become another program.
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);

      try {
        started.set_value(start_program(std::move(program)));
      } catch (const Error&) {
        started.set_value({.error = EMFILE});  // no room for one more pipe
      }
      released.wait();
    });
    started_ = result.get();
  }
  ~Keeper() {
    release_.set_value();
    thread_.join();
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  const Started& started() const { return started_; }

 private:
  std::promise<void> release_;
  Started started_;
  std::thread thread_;
};

Child::Child(const std::vector<std::string>& argv) {
  RETORT_CHECK(!argv.empty());
  Pipe in, out, err;

  // The pipes' ends become its standard streams.
  Program program{.path = path_in_environment(argv.front()),
                  .arguments = {},
                  .in = in.read,
                  .out = out.write,
                  .err = err.write};
  for (const std::string& argument : argv)
    program.arguments.push_back(const_cast<char*>(argument.c_str()));
  program.arguments.push_back(nullptr);
  keeper_ = std::make_unique<Keeper>(std::move(program));
  if (const int error = keeper_->started().error; error != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot start '" + argv.front() + "': " + std::strerror(error));
  pid_ = keeper_->started().pid;

  // Our ends; the child's own are closed with the pipes.
  in_ = taken(in.write);
  out_ = taken(out.read);
  err_ = taken(err.read);
}

Child::~Child() {
  close_all();  // end of file for its stdin, and it cannot be stuck on a full pipe
  if (pid_ < 0) return;
  ending(kExitGrace);
  kill();
}

void Child::close_in() { close_fd(in_); }

void Child::close_err() { close_fd(err_); }

void Child::close_all() {
  close_fd(in_);
  close_fd(out_);
  close_fd(err_);
}

std::string Child::ending(Duration grace) {
  RETORT_CHECK(pid_ > 0);
  for (const Deadline deadline = Deadline::after(grace);;) {
    siginfo_t info{};
    // Not reaped yet, so that the number of the process group stays ours until kill().
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == pid_) {
      const std::string number = std::to_string(info.si_status);
      return info.si_code == CLD_EXITED ? "exited with code " + number
                                        : "was killed by signal " + number;
    }
    if (deadline.expired()) return "";
    std::this_thread::sleep_for(kPollStep);
  }
}

void Child::kill() {
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  reap(pid_);
  pid_ = -1;
  keeper_.reset();
  close_all();
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

ssize_t write_quietly(int fd, const char* data, size_t size) {
  // A signal that was pending before is not ours to take.
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);

  // SIGPIPE is blocked in this thread only, and taken away before that ends.
  const ssize_t wrote = ::write(fd, data, size);
  const int error = errno;
  if (wrote < 0 && error == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec now{0, 0};
    while (sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
    }
  }

  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return wrote;
}

}  // namespace retort
