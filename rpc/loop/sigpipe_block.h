// Blocks SIGPIPE on the current thread for as long as it lives. OpenSSL writes to sockets without
// MSG_NOSIGNAL, so a lost peer would end the process; threads started inside, as TensorPipe's
// channels have them, inherit the mask. The process's own disposition of signals stays what it is.
#pragma once

#include <signal.h>

#include <ctime>

namespace retort::rpc::detail {

class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeBlock() {
    // One raised meanwhile must not strike when the mask is lifted.
    const timespec now{};
    if (!was_pending_ && sigismember(&before_, SIGPIPE) == 0)
      while (sigtimedwait(&sigpipe_, nullptr, &now) == SIGPIPE) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t sigpipe_{}, before_{};
  bool was_pending_ = false;
};

}  // namespace retort::rpc::detail
