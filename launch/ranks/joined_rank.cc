#include "launch/ranks/joined_rank.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/process/owned_fd.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {
namespace {

// Tells the launcher of every signal that comes, from a thread of its own, until it is destroyed.
class SignalForwarder {
 public:
  SignalForwarder(SignalCatcher& signals, LauncherLink& launcher)
      : end_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this, &signals, &launcher] { forward(signals, launcher); }) {}
  ~SignalForwarder() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(end_.get(), &one, sizeof one);
    thread_.join();
  }
  SignalForwarder(const SignalForwarder&) = delete;
  SignalForwarder& operator=(const SignalForwarder&) = delete;

 private:
  void forward(SignalCatcher& signals, LauncherLink& launcher) const {
    for (;;) {
      pollfd entries[] = {{signals.fd(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
      if (::poll(entries, 2, -1) < 0 && errno != EINTR) return;
      while (const auto number = signals.next())
        launcher.report({.state = "signalled", .signal = *number});
      if (entries[1].revents != 0) return;
    }
  }

  const OwnedFd end_;
  std::thread thread_;
};

int exit_code(const JoinedRank& rank, std::optional<int> worked) {
  if (!worked) return rank.driving ? 1 : 0;
  if (*worked != 0) return *worked;
  if (rank.driving && rank.state() == "diverged") return kExitDiverged;
  if (rank.driving) return rank.state() == "done" ? 0 : kExitStoppedEarly;
  return rank.launcher.lost() ? 1 : 0;
}

}  // namespace

int run_joined_rank(const JoinedRank& rank) {
  std::optional<int> worked;
  {
    const SignalForwarder forwarder(rank.signals, rank.launcher);
    worked = rank.work();
  }

  // To the launcher a rank that ends without a checkpoint, as it was asked to, ends by the signal
  // that asks for that.
  const int code = exit_code(rank, worked);
  // To the launcher an end with a checkpoint is a good one. Which one it was is said to whoever
  // started this process.
  const int saved = code == kExitStoppedEarly || code == kExitDiverged ? 0 : code;
  rank.launcher.report({.state = "ended", .ended = worked ? saved : -SIGTERM});
  return code;
}

}  // namespace retort::launch
