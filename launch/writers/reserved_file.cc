#include "launch/writers/reserved_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/process/owned_fd.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kLeastRoom = 64 << 10;

// Blocks beyond the end of the file, so that its size stays that of its content.
bool reserve_blocks(int fd, uint64_t bytes) {
  return ::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0;
}

// 0, or the error number; then there is none.
int make_spare(const fs::path& path, uint64_t bytes) {
  const OwnedFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() >= 0 && reserve_blocks(file.get(), bytes)) return 0;
  const int error = errno;
  ::unlink(path.c_str());
  return error;
}

// 0, or the error number.
int write_whole(const fs::path& path, std::string_view content, uint64_t room) {
  const OwnedFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) return errno;
  for (size_t done = 0; done < content.size();) {
    const ssize_t wrote = ::pwrite(file.get(), content.data() + done, content.size() - done,
                                   static_cast<off_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    done += static_cast<size_t>(wrote);
  }
  // The rest of an older content goes, and with it the reserved blocks, which are taken again.
  if (::ftruncate(file.get(), static_cast<off_t>(content.size())) != 0) return errno;
  reserve_blocks(file.get(), room);
  return 0;
}

}  // namespace

ReservedFile::ReservedFile(fs::path path)
    : path_(std::move(path)),
      spare_(path_.string() + ".spare"),
      second_(path_.string() + ".spare2") {}

void ReservedFile::replace(std::string_view content) {
  try {
    replace_file(path_, content);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted || content.size() > room_) throw;
    return use_room(content);
  }
  // The file is a new one now and has no room of its own.
  path_has_room_ = false;
  if (room_ < 2 * content.size() || !has_second_)  // it may grow until the next time
    keep_room(std::max<uint64_t>({kLeastRoom, room_, 4 * content.size()}));
}

void ReservedFile::keep_room(uint64_t bytes) {
  if (!can_reserve_) return;
  const int failed = room_ >= bytes ? 0 : make_spare(spare_, bytes);
  room_ = failed ? 0 : bytes;
  has_second_ = room_ > 0 && make_spare(second_, bytes) == 0;
  can_reserve_ = failed != EOPNOTSUPP && failed != ENOSYS;
}

void ReservedFile::use_room(std::string_view content) {
  const auto fail_with = [&](int error) {
    throw Error(error == ENOSPC ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
                "cannot replace " + path_.string() + ": " + std::strerror(error));
  };
  if (const int error = write_whole(spare_, content, room_)) fail_with(error);
  // The two change places, so that a reader finds a whole file and the old one is the next spare.
  if (::renameat2(AT_FDCWD, spare_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0)
    fail_with(errno);
  if (std::exchange(path_has_room_, true)) return;

  // The spare of now is the file of before, which was written without room of its own. The second
  // spare stands in for it.
  if (!has_second_ || ::rename(second_.c_str(), spare_.c_str()) != 0) room_ = 0;
  has_second_ = false;
}

void ReservedFile::release() {
  std::error_code ignored;
  fs::remove(spare_, ignored);
  fs::remove(second_, ignored);
  room_ = 0;
  has_second_ = false;
}

}  // namespace retort::launch
