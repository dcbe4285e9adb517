#include "launch/run_folder/driving_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/process/owned_fd.h"

namespace retort::launch {
namespace {

// Writable, because over NFS only that may be locked against all others.
OwnedFd open_lock(const std::filesystem::path& run_folder) {
  return OwnedFd(::open((run_folder / kDrivingLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
}

}  // namespace

DrivingLock::DrivingLock(const std::filesystem::path& run_folder) : file_(open_lock(run_folder)) {
  // Driving processes share the lock, so this waits at most for somebody who asks at this moment
  // and holds it alone.
  int locked = -1;
  do {
    locked = ::flock(file_.get(), LOCK_SH);
  } while (locked != 0 && errno == EINTR);
  if (locked != 0) {
    RETORT_LOG(kWarning)
        << "cannot lock " << (run_folder / kDrivingLock).string() << ": " << std::strerror(errno)
        << "; if the launcher is lost, serving processes cannot know that this one has ended: they "
           "stay for launch.stop_timeout, and with launcher_lost: continue until they are ended";
  }
}

bool anyone_drives(const std::filesystem::path& run_folder) {
  const OwnedFd file = open_lock(run_folder);
  // A lock that can be had exclusively is held by no driving process; closing the file gives it
  // back. An error counts as held, because the answer cannot be known.
  return ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace retort::launch
