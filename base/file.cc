#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace retort {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const std::string& what, const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
              what + " " + path.string() + ": " + std::strerror(error) + (full ? " (free space on this disk)" : ""));
}

void sync_path(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) fail("cannot open for sync", path, errno);
  const int failed = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (failed) fail("cannot sync", path, error);
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

}  // namespace

std::string read_file(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Error(ErrorCode::kInvalidArgument, "cannot open " + path.string() + ": " + std::strerror(errno));
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int error = errno;
      ::close(fd);
      throw Error(ErrorCode::kInvalidArgument, "cannot read " + path.string() + ": " + std::strerror(error));
    }
    if (got == 0) break;
    content.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  return content;
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)), temporary_(path_.string() + ".tmp-" + std::to_string(::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot create", temporary_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail("cannot write", path_, errno);
    done += static_cast<size_t>(wrote);
  }
  size_ += bytes.size();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("cannot sync", path_, errno);
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail("cannot finish", path_, error);
  }
  sync_path(parent_of(path_), O_RDONLY | O_DIRECTORY);
}

void write_folder_atomically(const fs::path& path, const std::function<void(const fs::path&)>& fill) {
  const fs::path temporary = path.string() + ".tmp-" + std::to_string(::getpid());
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  std::error_code failed;
  fs::create_directories(temporary, failed);
  if (failed) fail("cannot create folder", temporary, failed.value());
  try {
    fill(temporary);
    for (const auto& entry : fs::recursive_directory_iterator(temporary)) {
      if (entry.is_regular_file()) sync_path(entry.path(), O_RDONLY);
      if (entry.is_directory()) sync_path(entry.path(), O_RDONLY | O_DIRECTORY);
    }
    sync_path(temporary, O_RDONLY | O_DIRECTORY);
    const fs::path old = path.string() + ".old-" + std::to_string(::getpid());
    const bool replaces = fs::exists(path);
    if (replaces) fs::rename(path, old);
    fs::rename(temporary, path);
    sync_path(parent_of(path), O_RDONLY | O_DIRECTORY);
    if (replaces) fs::remove_all(old);
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(temporary, ignored);
    fail("cannot write folder", path, e.code().value());
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Error(ErrorCode::kInvalidArgument, "cannot open " + path.string() + ": " + std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(ErrorCode::kInvalidArgument, path.string() + " is not a regular file");
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    if (address == MAP_FAILED) {
      ::close(fd);
      fail("cannot map", path, error);
    }
    data_ = static_cast<const std::byte*>(address);
  }
  ::close(fd);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace retort
