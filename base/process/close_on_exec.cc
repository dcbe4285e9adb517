#include "base/process/close_on_exec.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace retort {

void close_on_exec_from(unsigned first) {
  if (::syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Linux before 5.11 takes one at a time.
  constexpr int kMostDescriptors = 1 << 16;
  for (int fd = static_cast<int>(first); fd < kMostDescriptors; ++fd)
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

}  // namespace retort
