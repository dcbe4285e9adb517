#include "base/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace retort {
namespace {

[[noreturn]] void refuse_append(const char* what, const std::filesystem::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
              std::string(what) + path.string() + ": " + std::strerror(error) +
                  (full ? " (free space on this disk)" : ""));
}

}  // namespace

int open_for_append(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) refuse_append("cannot open ", path, errno);
  return fd;
}

void append_bytes(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) refuse_append("cannot write ", path, errno);
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
}

}  // namespace retort
