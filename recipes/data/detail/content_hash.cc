#include "recipes/data/detail/content_hash.h"

#include <sys/stat.h>

#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "recipes/data/detail/creation_lock.h"
#include "recipes/data/detail/line_index.h"

namespace retort::data::detail {
namespace fs = std::filesystem;
namespace {

constexpr size_t kKeptFrom = size_t{64} << 20;
constexpr size_t kHashedAtOnce = size_t{4} << 20;

std::optional<std::string> kept_hash(const fs::path& kept) {
  constexpr size_t kHexDigits = 64;
  if (!fs::is_regular_file(kept)) return std::nullopt;
  // A constant, which is copied: GCC 12 warns falsely of moving a string whose length it knows.
  const std::string hash = read_file(kept);
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

// A version of a file: it changes with the content, unless somebody hides that. The time of the
// status is not part of it, as rights, owner and links are no content.
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

  // Another thread or process may be hashing this file. It has the hash by the time that it lets go
  // of the lock, so that is looked for again.
  std::error_code failed;
  fs::create_directories(cache, failed);
  const CreationLock lock(cache / (name + ".lock"), stop);
  if (lock.is_stopped()) return std::nullopt;
  if (auto hash = kept_hash(kept)) return hash;
  const auto hash = hash_of(text, stop);
  if (!hash) return std::nullopt;

  if (Version(file) != before)
    throw Error(ErrorCode::kCorrupt,
                file.string() + ": was changed while it was read; start again when it is whole");
  // The name follows from the file's times. If they changed meanwhile, nobody would look under the
  // old name.
  const bool has_its_name = kept_name(file, text) == name;
  if (!failed && has_its_name) replace_file(kept, *hash);
  return hash;
}

}  // namespace retort::data::detail
