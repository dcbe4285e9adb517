#include "base/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace retort {
namespace fs = std::filesystem;
namespace {

constexpr mode_t kOfOthers = 077;

bool is_mounted_read_only(const fs::path& path) {
  struct statvfs mount {};
  return ::statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0;
}

std::string octal(mode_t mode) {
  std::array<char, 16> text;
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode & 07777));
  return text.data();
}

// Returns the mode of a file of this user's that others may read or change, where somebody here can
// change that.
std::optional<mode_t> mode_for_others(const fs::path& path) {
  struct stat file {};
  const bool is_ours = ::stat(path.c_str(), &file) == 0 && file.st_uid == ::geteuid();
  if (!is_ours || (file.st_mode & kOfOthers) == 0 || is_mounted_read_only(path))
    return std::nullopt;
  return file.st_mode;
}

void close_to_others(const fs::path& path) {
  if (!mode_for_others(path)) return;
  ::chmod(path.c_str(), 0600);  // whether it did anything is asked next
  if (const auto mode = mode_for_others(path)) {
    RETORT_LOG(kWarning) << path.string() << " holds secrets, and its file system gives it mode "
                         << octal(*mode)
                         << " whatever is asked for: others may read or change it, unless a folder "
                            "above it or the mount keeps them out";
  }
}

[[noreturn]] void fail_to_write(const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
              "cannot write " + path.string() + ": " + std::strerror(error));
}

}  // namespace

std::string read_private_file(const fs::path& path) {
  if (const auto mode = mode_for_others(path))
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + " holds a secret and has mode " + octal(*mode) +
                    ": others may read or change it; expected 0600: chmod 600 " + path.string() +
                    "; where that changes nothing or does not last (SMB, exFAT, a volume with "
                    "fsGroup) keep it on another file system, or mount that one read-only");
  return read_file(path);
}

std::string read_own_private_file(const fs::path& path) {
  close_to_others(path);
  return read_file(path);
}

void write_private_file(const fs::path& path, std::string_view content) {
  const fs::path temporary = path.string() + temporary_suffix();
  // The file is private from its first moment on, and takes its name when all of it is on the disk.
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) fail_to_write(temporary, errno);
  int error = 0;
  for (size_t done = 0; done < content.size() && error == 0;) {
    const ssize_t wrote = ::write(fd, content.data() + done, content.size() - done);
    if (wrote >= 0)
      done += static_cast<size_t>(wrote);
    else if (errno != EINTR)
      error = errno;
  }

  if (error == 0 && ::fsync(fd) != 0) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    fail_to_write(path, error);
  }
  rename_file(temporary, path);
  close_to_others(path);
}

}  // namespace retort
