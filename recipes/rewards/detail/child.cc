#include "recipes/rewards/detail/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"

namespace retort::rewards::detail {
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

// What posix_spawn needs, released whatever happens.
struct SpawnSetup {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

Child::Child(const std::vector<std::string>& argv) {
  RETORT_CHECK(!argv.empty());
  Pipe in, out, err;

  // Its ends become its standard streams.
  SpawnSetup setup;
  posix_spawn_file_actions_adddup2(&setup.actions, in.read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&setup.actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&setup.actions, err.write, STDERR_FILENO);

  std::vector<char*> arguments;
  for (const std::string& argument : argv)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int error = ::posix_spawnp(&pid_, arguments[0], &setup.actions, &setup.attributes,
                                   arguments.data(), environ);
  if (error != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot start '" + argv.front() + "': " + std::strerror(error));

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
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  close_all();
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

}  // namespace retort::rewards::detail
