#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/sizes.h"

namespace retort {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const std::string& what, const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
              what + " " + path.string() + ": " + std::strerror(error) +
                  (full ? " (free space on this disk)" : ""));
}

void sync_path(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) fail("cannot open for sync", path, errno);
  const int failed = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  if (failed) fail("cannot sync", path, error);
}

// Writes all bytes at the offset. Returns 0 or the error number.
int write_at(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote =
        ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    done += to_size(wrote);
  }
  return 0;
}

// Tells a name that is wrong from a file that is not to be had now.
ErrorCode read_error_code(int error) {
  for (const int passing : {EIO, ESTALE, EMFILE, ENFILE, ENOMEM, ETIMEDOUT, EHOSTDOWN, ENOTCONN})
    if (error == passing) return ErrorCode::kUnavailable;
  return ErrorCode::kInvalidArgument;
}

const char* file_type_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Opens a file for reading. Returns 0 or the error number; throws kInvalidArgument for what is
// there and is no regular file.
int try_open(const fs::path& path, int& fd) {
  // Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
  fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  const int error = fd < 0 ? errno : 0;
  struct stat info {};
  const bool known = fd < 0 ? ::stat(path.c_str(), &info) == 0 : ::fstat(fd, &info) == 0;
  if (known && !S_ISREG(info.st_mode)) {
    if (fd >= 0) ::close(fd);
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + " is not a regular file but " + file_type_name(info.st_mode));
  }
  return error;
}

struct FailedRead {
  int error = 0;  // errno; 0: it did not fail
  std::string what;
};

// Appends what comes until the end or an error, and closes the descriptor. Returns 0 or the error
// number.
int read_to_end(int fd, std::string& content) {
  int error = 0;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    content.append(buffer, to_size(got));
  }
  ::close(fd);
  return error;
}

FailedRead try_read(const fs::path& path, std::string& content) {
  int fd = -1;
  if (const int error = try_open(path, fd); error != 0)
    return {.error = error, .what = "cannot open"};
  if (const int error = read_to_end(fd, content); error != 0)
    return {.error = error, .what = "cannot read"};
  return {};
}

// Two hosts, or two containers, may have a process of the same number.
std::string unique_suffix() { return "-" + std::to_string(::getpid()) + "-" + random_hex(4); }

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

std::string temporary_suffix() { return ".tmp" + unique_suffix(); }

int open_regular_file(const fs::path& path) {
  int fd = -1;
  if (const int error = try_open(path, fd); error != 0)
    throw Error(read_error_code(error),
                "cannot open " + path.string() + ": " + std::strerror(error));
  return fd;
}

std::string read_file(const fs::path& path) {
  std::string content;
  if (const FailedRead failed = try_read(path, content); failed.error != 0)
    throw Error(read_error_code(failed.error),
                failed.what + " " + path.string() + ": " + std::strerror(failed.error));
  return content;
}

std::optional<std::string> read_file_if_there(const fs::path& path) {
  std::string content;
  const FailedRead failed = try_read(path, content);
  if (failed.error == ENOENT || failed.error == ENOTDIR) return std::nullopt;
  if (failed.error != 0)
    throw Error(ErrorCode::kUnavailable,
                failed.what + " " + path.string() + ": " + std::strerror(failed.error));
  return content;
}

// (A stream throws where a read of what was opened fails: a file that another host has removed.)
std::string read_what_is_there(const fs::path& path) {
  std::string content;
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd >= 0) read_to_end(fd, content);
  return content;
}

bool is_file_there(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return S_ISREG(info.st_mode);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw Error(ErrorCode::kUnavailable,
              "cannot look at " + path.string() + ": " + std::strerror(errno));
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void replace_file(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit_unsynced();
}

AtomicFile::AtomicFile(fs::path path)
    : path_(std::move(path)), temporary_(path_.string() + temporary_suffix()) {
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
    done += to_size(wrote);
  }
  size_ += bytes.size();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void AtomicFile::commit() {
  // The content must be on the disk before the name leads to it, and then the folder for the name.
  if (::fsync(fd_) != 0) fail("cannot sync", path_, errno);
  take_place();
  sync_path(parent_of(path_), O_RDONLY | O_DIRECTORY);
}

void AtomicFile::commit_unsynced() { take_place(); }

void AtomicFile::take_place() {
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail("cannot finish", path_, error);
  }
}

AtomicFolder::AtomicFolder(fs::path path)
    : path_(std::move(path)), temporary_(path_.string() + temporary_suffix()) {
  std::error_code failed;
  fs::remove_all(temporary_, failed);
  failed.clear();
  fs::create_directories(temporary_, failed);
  if (failed) fail("cannot create folder", temporary_, failed.value());
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

// Puts the new folder into its place. Returns where the old one is now; empty if there was none. A
// folder cannot be renamed over one that has files, so the two change places. Where the file system
// cannot do that (NFS) the old one moves aside for a moment, and comes back if the new one cannot
// take its place.
fs::path AtomicFolder::take_folder_place() const {
  if (!fs::exists(path_)) {
    fs::rename(temporary_, path_);
    return {};
  }
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0)
    return temporary_;

  const fs::path old = path_.string() + ".old" + unique_suffix();
  fs::rename(path_, old);
  std::error_code failed;
  fs::rename(temporary_, path_, failed);
  if (!failed) return old;
  std::error_code ignored;
  fs::rename(old, path_, ignored);
  throw fs::filesystem_error("cannot rename", temporary_, path_, failed);
}

void AtomicFolder::commit() {
  try {
    // Everything in the folder must be on the disk before its name leads there.
    for (const auto& entry : fs::recursive_directory_iterator(temporary_)) {
      if (entry.is_regular_file()) sync_path(entry.path(), O_RDONLY);
      if (entry.is_directory()) sync_path(entry.path(), O_RDONLY | O_DIRECTORY);
    }
    sync_path(temporary_, O_RDONLY | O_DIRECTORY);

    const fs::path old = take_folder_place();
    committed_ = true;

    // The old folder goes only when the new name is on the disk.
    sync_path(parent_of(path_), O_RDONLY | O_DIRECTORY);
    if (!old.empty()) fs::remove_all(old);
  } catch (const fs::filesystem_error& e) {
    fail("cannot write folder", path_, e.code().value());
  }
}

void write_folder_atomically(const fs::path& path,
                             const std::function<void(const fs::path&)>& fill) {
  AtomicFolder folder(path);
  try {
    fill(folder.temporary());
  } catch (const fs::filesystem_error& e) {
    fail("cannot write folder", path, e.code().value());
  }
  folder.commit();
}

void reserve_file(const fs::path& path, std::string_view head, uint64_t size_bytes) {
  RETORT_CHECK(head.size() <= size_bytes) << path << " begins with more bytes than it has";
  // The file is not opened for reading: where the file system cannot reserve by itself, the C
  // library writes a byte into each block, and a network file system would read every page before.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail("cannot create", path, errno);
  const auto drop = [&](const std::string& what, int error) {
    ::close(fd);
    ::unlink(path.c_str());
    fail(what, path, error);
  };

  // The blocks are taken now, so that no later write finds the disk full.
  int failed = size_bytes == 0 ? 0 : EINTR;
  while (failed == EINTR) {
    // What the C library wrote before a signal would be read by its next try, which cannot read.
    failed = ::ftruncate(fd, 0) == 0 ? 0 : errno;
    if (failed == 0) failed = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes));
  }
  if (failed != 0) drop("cannot reserve " + std::to_string(size_bytes) + " bytes for", failed);

  if (const int error = write_at(fd, 0, std::as_bytes(std::span(head))))
    drop("cannot write", error);
  if (::close(fd) != 0) fail("cannot finish", path, errno);
}

SharedFile::SharedFile(fs::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) fail("cannot open for writing", path_, errno);
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

SharedFile::~SharedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void SharedFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  if (const int error = write_at(fd_, offset, bytes)) fail("cannot write", path_, error);
}

void SharedFile::sync() {
  if (::fsync(fd_) != 0) fail("cannot sync", path_, errno);
}

void rename_file(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("cannot finish", to, errno);
  sync_path(parent_of(to), O_RDONLY | O_DIRECTORY);
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int fd = open_regular_file(path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    fail("cannot map", path, error);
  }

  // An empty file has no map; the map itself outlives the descriptor.
  size_ = to_size(info.st_size);
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
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace retort
