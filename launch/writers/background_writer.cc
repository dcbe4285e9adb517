#include "launch/writers/background_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/process/owned_fd.h"

namespace retort::launch {

struct BackgroundWriter::State {
  State(int fd, size_t limit) : file(::fcntl(fd, F_DUPFD_CLOEXEC, 3)), capacity(limit) {}

  // Under the mutex.
  bool idle() const { return unwritten == 0 || broken; }
  void take(const std::string& text);

  // The thread's.
  void run();
  bool write_all(std::string_view text);
  bool is_closed() {
    const std::lock_guard lock(mutex);
    return closed;
  }

  const OwnedFd file;
  const size_t capacity;
  std::mutex mutex;
  std::condition_variable changed;
  // What follows is under the mutex.
  std::string waiting;   // not yet taken by the thread
  size_t unwritten = 0;  // bytes, those that the thread writes just now among them
  bool broken = false;   // a write has failed
  bool closed = false;
};

void BackgroundWriter::State::take(const std::string& text) {
  if (broken) return;
  waiting += text;
  unwritten += text.size();
  changed.notify_all();
}

// The thread's body, until close(). The thread has a share of the state, and with it the
// descriptor, because a write that hangs may outlive the writer.
void BackgroundWriter::State::run() {
  // Signals are for other threads; SIGPIPE of a reader that is gone stays here and does nothing.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);

  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return closed || !waiting.empty(); });
    if (closed) return;
    // The write may take for ever, so it goes without the lock: nobody who hands in a text waits
    // for it.
    const std::string text = std::exchange(waiting, {});
    lock.unlock();
    const bool written = write_all(text);
    lock.lock();
    unwritten -= text.size();
    broken = broken || !written;
    changed.notify_all();
  }
}

// False when it cannot be written, or need not be any more. May take for ever.
bool BackgroundWriter::State::write_all(std::string_view text) {
  // The text goes in pieces, so that little is written after close().
  constexpr size_t kPiece = 4096;
  while (!text.empty()) {
    if (is_closed()) return false;
    const ssize_t wrote = ::write(file.get(), text.data(), std::min(text.size(), kPiece));
    if (wrote < 0 && errno == EAGAIN) {
      // Another process has made the open file non-blocking.
      pollfd entry{file.get(), POLLOUT, 0};
      ::poll(&entry, 1, 100);
      continue;
    }
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

BackgroundWriter::BackgroundWriter(int fd, size_t capacity)
    : state_(std::make_shared<State>(fd, capacity)) {
  if (state_->file.get() < 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot duplicate a file descriptor: ") + std::strerror(errno));
  thread_ = std::thread([state = state_] { state->run(); });
}

BackgroundWriter::~BackgroundWriter() { close(); }

bool BackgroundWriter::write(const std::string& text) {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  // A text that is longer than the capacity is taken when nothing waits, or it never could be.
  const bool fits = state_->unwritten + text.size() <= state_->capacity;
  if (!fits && !state_->idle()) return false;
  state_->take(text);
  return true;
}

void BackgroundWriter::write_always(const std::string& text) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->take(text);
}

bool BackgroundWriter::idle() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->idle();
}

bool BackgroundWriter::drain(Deadline deadline) const {
  if (!state_) return true;
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline.time(), [&] { return state_->idle(); });
}

void BackgroundWriter::close() {
  if (!state_) return;
  bool writing = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    writing = state_->unwritten > state_->waiting.size();
    state_->changed.notify_all();
  }

  // A thread inside a write that may never return cannot be waited for.
  if (writing)
    thread_.detach();
  else
    thread_.join();
  state_.reset();
}

}  // namespace retort::launch
