#include "launch/supervision/life_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"

namespace retort::launch {
namespace {

constexpr std::chrono::milliseconds kAskAgain{100};
constexpr std::chrono::milliseconds kLongestPoll{60'000};  // poll counts in int

// Waits until `fd` is readable or at its end; false at the deadline.
bool wait_readable(int fd, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const auto left = std::min(deadline.remaining(), kLongestPoll);
    const int ready = ::poll(&entry, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready == 0 && deadline.expired()) return false;
  }
}

// Ends this process and what it started: nobody else is left to do so. The launcher gives each of
// its processes a group of its own; any other group is not ours to kill.
[[noreturn]] void kill_own_group() {
  if (::getpgrp() == ::getpid()) ::kill(0, SIGKILL);
  ::_exit(1);
}

}  // namespace

LifePipe::LifePipe(Options options)
    : options_(std::move(options)),
      grace_ms_(options_.grace.count()),
      wake_fd_(::eventfd(0, EFD_CLOEXEC)) {
  if (wake_fd_ < 0 || ::fcntl(options_.fd, F_SETFD, FD_CLOEXEC) != 0)
    throw Error(ErrorCode::kUnavailable,
                "the pipe from the launcher is not there; roles are started by `retort launch`");
  thread_ = std::thread([this] { watch(); });
}

LifePipe::~LifePipe() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof one);
  thread_.join();
  ::close(options_.fd);
  ::close(wake_fd_);
}

void LifePipe::watch() {
  if (!wait_for_loss()) return;
  if (options_.is_needed && !wait_until_unneeded()) return;

  const Duration grace(grace_ms_.load());
  RETORT_LOG(kError) << "the launcher is gone; stopping, at the latest in "
                     << format_duration(grace);
  options_.on_lost();
  if (wait_readable(wake_fd_, Deadline::after(grace))) return;
  RETORT_LOG(kError) << "not stopped in time: killed, with all that this process started";
  kill_own_group();
}

bool LifePipe::wait_for_loss() const {
  for (;;) {
    // Nothing is ever written into the pipe: a byte, an error and the end all mean that it is not
    // our launcher any more.
    pollfd entries[2] = {{options_.fd, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    const int ready = ::poll(entries, 2, -1);
    if (ready < 0 && errno == EINTR) continue;
    return entries[1].revents == 0;
  }
}

bool LifePipe::wait_until_unneeded() const {
  if (!options_.is_needed()) return true;
  RETORT_LOG(kError) << "the launcher is gone; serving until the driving processes have saved, "
                     << "at most " << format_duration(options_.need_limit);
  const Deadline limit = Deadline::after(options_.need_limit);
  while (!limit.expired() && options_.is_needed())
    if (wait_readable(wake_fd_, Deadline::after(std::min(limit.remaining(), kAskAgain))))
      return false;
  return true;
}

}  // namespace retort::launch
