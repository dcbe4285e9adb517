#include "base/process/owned_fd.h"

#include <unistd.h>

#include <utility>

namespace retort {

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int OwnedFd::release() { return std::exchange(fd_, -1); }

void OwnedFd::reset() {
  if (fd_ >= 0) ::close(release());
}

}  // namespace retort
