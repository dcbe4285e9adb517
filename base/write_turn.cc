#include "base/write_turn.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/host_name.h"

namespace retort {
namespace fs = std::filesystem;
namespace {

// statfs's f_type of file systems whose hosts take a page from one another before they change it:
// Lustre, GPFS, CephFS.
constexpr std::array<uint64_t, 3> kCoherent{0x0BD00BD0, 0x47504653, 0x00C36400};

constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";

fs::path turn_of(const fs::path& file) { return file.string() + ".turn"; }

[[noreturn]] void fail_at(const std::string& what, const fs::path& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(full ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
              what + " " + path.string() + ": " + std::strerror(error));
}

}  // namespace

std::string kernel_of(const fs::path& boot_id) {
  // Where it cannot be known every process counts as a host of its own: turns are slow, not wrong.
  static const std::string own = "process " + random_hex(16);
  std::ifstream in(boot_id);
  std::string kernel;
  in >> kernel;
  return kernel.empty() ? own : kernel;
}

std::string page_cache_of(const fs::path& folder) {
  struct statfs mounted {};
  struct stat info {};
  if (::statfs(folder.c_str(), &mounted) != 0 || ::stat(folder.c_str(), &info) != 0)
    fail_at("cannot look at", folder, errno);

  const auto type = static_cast<uint64_t>(mounted.f_type) & 0xFFFFFFFF;
  if (std::find(kCoherent.begin(), kCoherent.end(), type) != kCoherent.end())
    return "type " + std::to_string(type);

  // A container has its host's kernel, and its own mounts have numbers of their own there. Copies
  // of one virtual machine may have one boot id, but not one name.
  return kernel_of(kBootId) + " of " + host_name() + " device " + std::to_string(info.st_dev);
}

std::optional<WriteTurn> WriteTurn::try_take(const fs::path& file) {
  const fs::path path = turn_of(file);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0 && errno == EEXIST) return std::nullopt;
  if (fd < 0) fail_at("cannot create", path, errno);

  // The writer is named for the messages of others alone, so a full disk may leave the file empty.
  const std::string writer = host_name() + temporary_suffix();
  const ssize_t ignored = ::write(fd, writer.data(), writer.size());
  static_cast<void>(ignored);
  ::close(fd);
  return WriteTurn(path);
}

WriteTurn::WriteTurn(WriteTurn&& other) noexcept : path_(std::exchange(other.path_, {})) {}

WriteTurn::~WriteTurn() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void WriteTurn::beat() const { ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0); }

void TurnWatch::see(const fs::path& file) {
  const fs::path turn = turn_of(file);
  struct stat info {};
  if (::stat(turn.c_str(), &info) != 0) {  // it was given back just now
    seen_.erase(file);
    return;
  }
  const std::string writer = read_what_is_there(turn);
  const std::string sign = writer + " " + std::to_string(info.st_mtim.tv_sec) + "." +
                           std::to_string(info.st_mtim.tv_nsec);

  // Signs are compared with one another only: clocks of hosts differ.
  const auto now = std::chrono::steady_clock::now();
  const auto [seen, is_new] = seen_.try_emplace(file, Seen{sign, now});
  if (is_new || seen->second.sign != sign) {
    seen->second = {sign, now};
    return;
  }
  if (now - seen->second.since < patience_) return;
  throw Error(
      ErrorCode::kUnavailable,
      "whoever writes " + file.string() + " (" + (writer.empty() ? "unknown" : writer) + ", by " +
          turn.string() + ") has given no sign of life for " +
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(patience_).count()) +
          " s; see the logs of its host");
}

}  // namespace retort
