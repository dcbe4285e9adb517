#include "launch/process/signal_catcher.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace retort::launch {
namespace {

// A signal handler gets no argument of ours: this is the one place where state cannot be passed.
std::atomic<int> handler_fd{-1};
std::atomic<bool> handler_ran{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void retort_on_signal(int signal) {
  // The handler may come between any call and its caller's look at errno.
  const int saved = errno;
  handler_ran.store(true);
  const auto byte = static_cast<unsigned char>(signal);
  const int fd = handler_fd.load();
  if (fd >= 0) [[maybe_unused]]
    const auto written = ::write(fd, &byte, 1);
  errno = saved;
}

sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals)
    ::sigaddset(&set, signal);
  return set;
}

}  // namespace

void hold_signals(std::initializer_list<int> signals) {
  const sigset_t set = set_of(signals);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void release_signals(std::initializer_list<int> signals) {
  const sigset_t set = set_of(signals);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int held_signal(std::initializer_list<int> signals) {
  sigset_t waiting;
  if (::sigpending(&waiting) != 0) return 0;
  const auto waits = [&](int signal) {
    struct sigaction action {};
    return ::sigismember(&waiting, signal) == 1 && ::sigaction(signal, nullptr, &action) == 0 &&
           action.sa_handler != SIG_IGN;
  };
  const auto* const found = std::ranges::find_if(signals, waits);
  return found == signals.end() ? 0 : *found;
}

SignalCatcher::SignalCatcher(std::initializer_list<int> signals) {
  if (::pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0 || ::pipe2(stop_, O_CLOEXEC) != 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot make a pipe: ") + std::strerror(errno));
  int none = -1;
  RETORT_CHECK(handler_fd.compare_exchange_strong(none, pipe_[1]))
      << "two SignalCatchers in one process";
  handler_ran.store(false);
  sigset_t caught;
  ::sigemptyset(&caught);
  for (int signal : signals) {
    struct sigaction action {
    }, old{};
    action.sa_handler = retort_on_signal;
    action.sa_flags = SA_RESTART;
    ::sigfillset(&action.sa_mask);
    RETORT_CHECK(::sigaction(signal, &action, &old) == 0) << "signal " << signal;
    before_.emplace_back(signal, old);
    ::sigaddset(&caught, signal);
  }

  // This thread, and those that it starts later, block the signals, so that they come to serve()
  // alone.
  ::pthread_sigmask(SIG_BLOCK, &caught, &mask_before_);
  thread_ = std::thread([this, caught] { serve(caught); });
}

// Unblocks the signals here and sleeps until the destructor: their handlers interrupt nothing but
// this sleep. (Not in read(), which the thread sanitizer lets a handler run only behind.)
void SignalCatcher::serve(sigset_t signals) {
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  pollfd closed{.fd = stop_[0], .events = POLLIN, .revents = 0};
  while (::poll(&closed, 1, /*timeout=*/-1) < 0 && errno == EINTR) {
  }
}

SignalCatcher::~SignalCatcher() {
  ::close(stop_[1]);
  thread_.join();
  ::close(stop_[0]);
  for (const auto& [signal, old] : before_)
    ::sigaction(signal, &old, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  handler_fd.store(-1);
  ::close(pipe_[0]);
  ::close(pipe_[1]);
}

std::optional<int> SignalCatcher::next() {
  unsigned char byte = 0;
  if (::read(pipe_[0], &byte, 1) != 1) return std::nullopt;
  return byte;
}

bool SignalCatcher::any() const { return handler_ran.load(); }

}  // namespace retort::launch
