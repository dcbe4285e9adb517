#include "base/process/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace retort {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot make a pipe: ") + std::strerror(errno) +
                    (errno == EMFILE ? "; raise the limit of open files (`ulimit -Hn`)" : ""));
  return {OwnedFd(ends[0]), OwnedFd(ends[1])};
}

}  // namespace retort
