#include "recipes/data/detail/content_hash.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "recipes/data/detail/line_index.h"

namespace retort::data::detail {
namespace fs = std::filesystem;
namespace {

constexpr size_t kKeptFrom = size_t{64} << 20;
constexpr size_t kHashedAtOnce = size_t{4} << 20;

std::optional<std::string> kept_hash(const fs::path& kept) {
  constexpr size_t kHexDigits = 64;
  if (!fs::is_regular_file(kept)) return std::nullopt;
  std::string hash = read_file(kept);
  const bool is_hex = hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (hash.size() != kHexDigits || !is_hex) return std::nullopt;
  return hash;
}

std::optional<std::string> hash_of(std::string_view text, const std::function<bool()>& stop) {
  Sha256 content;
  for (size_t at = 0; at < text.size(); at += kHashedAtOnce) {
    if (stop()) return std::nullopt;
    content.update(text.substr(at, kHashedAtOnce));
  }
  return content.hex_digest();
}

// Held by the one thread, of all processes with this cache, that makes the hash of this name. Where
// the file system has no locks, or the cache cannot be written, each makes it. It ends with its
// process. The file goes with its holder: who waits for it then finds what the holder has kept.
class HashLock {
 public:
  // Waits until it has the lock or `stop` says so.
  HashLock(fs::path path, const std::function<bool()>& stop)
      : path_(std::move(path)),
        fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode)) {
    constexpr std::chrono::milliseconds kBetweenLooks{50};
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      const bool is_held = errno == EWOULDBLOCK;
      if (!is_held && errno != EINTR) return;
      is_stopped_ = stop();
      if (is_stopped_) return;
      if (is_held) std::this_thread::sleep_for(kBetweenLooks);
    }
    is_mine_ = fd_ >= 0;
  }
  ~HashLock() {
    std::error_code ignored;
    if (is_mine_) fs::remove(path_, ignored);
    if (fd_ >= 0) ::close(fd_);
  }
  HashLock(const HashLock&) = delete;
  HashLock& operator=(const HashLock&) = delete;

  bool is_stopped() const { return is_stopped_; }

 private:
  static constexpr mode_t kMode = 0644;

  fs::path path_;
  int fd_;
  bool is_mine_ = false;
  bool is_stopped_ = false;
};

// What changes with the content, unless somebody hides that. The time of the status is not part of
// it: rights, owner and links are no content.
struct Version {
  explicit Version(const fs::path& file) {
    struct stat info {};
    if (::stat(file.c_str(), &info) != 0) return;
    inode = info.st_ino;
    size = info.st_size;
    seconds = info.st_mtim.tv_sec;
    nanoseconds = info.st_mtim.tv_nsec;
  }
  bool operator==(const Version&) const = default;

  ino_t inode = 0;
  off_t size = 0;
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
};

}  // namespace

std::optional<std::string> content_hash(const fs::path& file, std::string_view text,
                                        const fs::path& cache, const std::function<bool()>& stop) {
  if (cache.empty() || text.size() < kKeptFrom) return hash_of(text, stop);

  const Version before(file);
  const std::string name = kept_name(file, text);
  const fs::path kept = cache / (name + ".sha256");
  if (auto hash = kept_hash(kept)) return hash;

  // Another thread or process may be at it, and has it by the time that it lets go.
  std::error_code failed;
  fs::create_directories(cache, failed);
  const HashLock lock(cache / (name + ".lock"), stop);
  if (lock.is_stopped()) return std::nullopt;
  if (auto hash = kept_hash(kept)) return hash;
  const auto hash = hash_of(text, stop);
  if (!hash) return std::nullopt;

  if (Version(file) != before)
    throw Error(ErrorCode::kCorrupt,
                file.string() + ": was changed while it was read; start again when it is whole");
  // Under the name that a file has no more, nobody looks for its hash.
  const bool has_its_name = kept_name(file, text) == name;
  if (!failed && has_its_name) replace_file(kept, *hash);
  return hash;
}

}  // namespace retort::data::detail
