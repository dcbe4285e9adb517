// One process makes a file of a folder that several share.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace retort::data::detail {

// Held on the folder by the one process that makes a file in it, while others wait for that instead
// of making theirs. Where the file system has no locks all of them make it, and the last one's
// stays. It ends with its process.
class MakingLock {
 public:
  explicit MakingLock(const std::filesystem::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~MakingLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  MakingLock(const MakingLock&) = delete;
  MakingLock& operator=(const MakingLock&) = delete;

 private:
  int fd_;
};

}  // namespace retort::data::detail
