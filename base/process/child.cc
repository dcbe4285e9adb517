#include "base/process/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process/group_guard.h"
#include "base/process/pipe.h"
#include "base/process/start.h"

namespace retort {
namespace {

constexpr Duration kExitGrace = std::chrono::seconds(2);
constexpr Duration kPollStep = std::chrono::milliseconds(5);

OwnedFd without_blocking(OwnedFd fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return fd;
}

}  // namespace

// The thread that starts the child and lives until it has been reaped: a child of a thread that
// ends would be killed there and then (ProgramStart::ends_with_thread).
class Child::Keeper {
 public:
  explicit Keeper(ProgramStart options) {
    std::promise<StartedProgram> started;
    std::future<StartedProgram> result = started.get_future();
    auto keep = [this, options = std::move(options), started = std::move(started),
                 released = release_.get_future()]() mutable {
      // Signals to this process are for its other threads.
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);

      started.set_value(start_guarded(options, guard_));
      released.wait();
    };
    try {
      thread_ = std::thread(std::move(keep));
    } catch (const std::system_error& failed) {
      started_.error = failed.code().value();  // EAGAIN: the system has no room for one more
      return;
    }
    started_ = result.get();
  }
  ~Keeper() {
    release_.set_value();
    if (thread_.joinable()) thread_.join();
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  const StartedProgram& started() const { return started_; }
  GroupGuard& guard() { return guard_; }

 private:
  std::promise<void> release_;
  GroupGuard guard_;
  StartedProgram started_;
  std::thread thread_;
};

Child::Child(const std::vector<std::string>& argv, Errors errors) {
  RETORT_CHECK(!argv.empty());
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  Pipe err;
  if (errors == Errors::kApart) err = make_pipe();

  // The pipes' ends become its standard streams.
  const int its_err = errors == Errors::kApart ? err.in.get() : out.in.get();
  keeper_ =
      std::make_unique<Keeper>(ProgramStart{.program = path_in_environment(argv.front()),
                                            .arguments = argv,
                                            .descriptors = {in.out.get(), out.in.get(), its_err},
                                            .ends_with_thread = true});
  if (keeper_->started().error != 0)
    throw_start_error("cannot start '" + argv.front() + "'", keeper_->started());
  pid_ = keeper_->started().pid;

  // This process keeps its own ends; the child's are closed with the pipes.
  in_ = without_blocking(std::move(in.in));
  out_ = without_blocking(std::move(out.out));
  if (errors == Errors::kApart) err_ = without_blocking(std::move(err.out));
}

Child::~Child() {
  close_all();  // end of file for its stdin, and it cannot be stuck on a full pipe
  if (pid_ < 0) return;
  ending(kExitGrace);
  kill();
}

pid_t Child::guard_pid() const { return keeper_ ? keeper_->guard().pid() : -1; }

void Child::close_all() {
  in_.reset();
  out_.reset();
  err_.reset();
}

std::string Child::ending(Duration grace) {
  RETORT_CHECK(pid_ > 0);
  keeper_->guard().look();
  for (const Deadline deadline = Deadline::after(grace);;) {
    siginfo_t info{};
    // The child is not reaped yet, so that the number of the process group stays ours until kill().
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
  // The whole process group goes, with all that the program has started in it.
  ::kill(-pid_, SIGKILL);
  if (!reap(pid_)) {
    RETORT_LOG(kWarning) << "process " << pid_
                         << " was killed and does not end; it is left to itself";
  }
  pid_ = -1;
  keeper_.reset();
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

}  // namespace retort
