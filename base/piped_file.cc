#include "base/piped_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace retort {
namespace {

[[noreturn]] void refuse_pipe(const std::filesystem::path& path, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, path.string() + " is a pipe " + why);
}

// Reads all that is written into a pipe. `fd` does not wait by itself, so this polls.
std::string read_pipe(int fd, const std::filesystem::path& path) {
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got == 0) break;
    if (got > 0) {
      content.append(buffer, static_cast<size_t>(got));
      if (content.size() > kMostPipedBytes)
        refuse_pipe(path, "with more than " + std::to_string(kMostPipedBytes >> 20) +
                              " MiB; expected a file");
    } else if (errno == EAGAIN) {
      // Somebody has it open for writing, and may take his time.
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
    } else if (errno != EINTR) {
      refuse_pipe(path, std::string("that cannot be read: ") + std::strerror(errno));
    }
  }
  if (content.empty()) refuse_pipe(path, "that nothing is written into; expected a file");
  return content;
}

}  // namespace

std::string read_file_or_pipe(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_fifo(path, ignored)) return read_file(path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) refuse_pipe(path, std::string("that cannot be opened: ") + std::strerror(errno));
  try {
    std::string content = read_pipe(fd, path);
    ::close(fd);
    return content;
  } catch (...) {
    ::close(fd);
    throw;
  }
}

}  // namespace retort
