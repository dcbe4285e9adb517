#include "recipes/data/detail/creation_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

namespace retort::data::detail {
namespace {

constexpr std::chrono::milliseconds kBetweenLooksAtLock{50};
constexpr mode_t kLockMode = 0644;

}  // namespace

CreationLock::CreationLock(const std::filesystem::path& folder)
    : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  wait({});
}

CreationLock::CreationLock(const std::filesystem::path& file, const std::function<bool()>& stop)
    : fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kLockMode)) {
  if (wait(stop)) made_ = file;
}

CreationLock::~CreationLock() {
  std::error_code ignored;
  if (!made_.empty()) std::filesystem::remove(made_, ignored);
  if (fd_ >= 0) ::close(fd_);
}

// True once it has the lock. Without `stop` the system waits; with it this looks again and again,
// so that it can be stopped.
bool CreationLock::wait(const std::function<bool()>& stop) {
  if (fd_ < 0) return false;
  while (::flock(fd_, stop ? LOCK_EX | LOCK_NB : LOCK_EX) != 0) {
    const bool is_held = errno == EWOULDBLOCK;
    if (!is_held && errno != EINTR) return false;
    is_stopped_ = stop && stop();
    if (is_stopped_) return false;
    if (is_held) std::this_thread::sleep_for(kBetweenLooksAtLock);
  }
  return true;
}

}  // namespace retort::data::detail
