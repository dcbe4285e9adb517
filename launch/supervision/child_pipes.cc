#include "launch/supervision/child_pipes.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace retort::launch {

std::array<OwnedFd, 2> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot make a pipe: ") + std::strerror(errno));
  return {OwnedFd(fds[0]), OwnedFd(fds[1])};
}

std::array<OwnedFd, 2> make_status_channel() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot make a socket pair: ") + std::strerror(errno));
  return {OwnedFd(fds[0]), OwnedFd(fds[1])};
}

OwnedFd pipe_with(const std::string& text) {
  auto [read_end, write_end] = make_pipe();
  RETORT_CHECK(text.size() < 60'000) << "more than a pipe holds";
  if (::write(write_end.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw Error(ErrorCode::kResourceExhausted,
                std::string("cannot write into a pipe: ") + std::strerror(errno));
  return std::move(read_end);
}

}  // namespace retort::launch
