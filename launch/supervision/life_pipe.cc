#include "launch/supervision/life_pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"

namespace retort::launch {
namespace {

// Waits until `fd` is readable or at its end; false at the deadline.
bool wait_readable(int fd, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(deadline.remaining().count()));
    if (ready > 0) return true;
    if (ready == 0 && deadline.expired()) return false;
  }
}

}  // namespace

LifePipe::LifePipe(int fd, std::function<void()> on_lost, Duration grace)
    : fd_(fd), wake_fd_(::eventfd(0, EFD_CLOEXEC)), on_lost_(std::move(on_lost)), grace_(grace) {
  if (wake_fd_ < 0 || ::fcntl(fd_, F_SETFD, FD_CLOEXEC) != 0)
    throw Error(ErrorCode::kUnavailable,
                "the pipe from the launcher is not there; roles are started by `retort launch`");
  thread_ = std::thread([this] { watch(); });
}

LifePipe::~LifePipe() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof one);
  thread_.join();
  ::close(fd_);
  ::close(wake_fd_);
}

void LifePipe::watch() {
  for (;;) {
    // Nothing is ever written into the pipe: a byte, an error and the end all mean that it is not
    // our launcher any more.
    pollfd entries[2] = {{fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
    const int ready = ::poll(entries, 2, -1);
    if (ready < 0 && errno == EINTR) continue;
    if (entries[1].revents != 0) return;
    break;
  }
  RETORT_LOG(kError) << "the launcher is gone; stopping, at the latest in "
                     << format_duration(grace_);
  on_lost_();
  if (!wait_readable(wake_fd_, Deadline::after(grace_))) ::_exit(1);
}

}  // namespace retort::launch
