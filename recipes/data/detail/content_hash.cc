#include "recipes/data/detail/content_hash.h"

#include <system_error>

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

}  // namespace

bool is_hash_kept(size_t bytes) { return bytes >= kKeptFrom; }

std::optional<std::string> content_hash(const fs::path& file, std::string_view text,
                                        const fs::path& cache, const std::function<bool()>& stop) {
  if (cache.empty() || !is_hash_kept(text.size())) return hash_of(text, stop);

  const std::string name = kept_name(file, text);
  const fs::path kept = cache / (name + ".sha256");
  if (auto hash = kept_hash(kept)) return hash;
  const auto hash = hash_of(text, stop);
  if (!hash) return std::nullopt;

  // A file that is changed meanwhile has another name by now.
  if (kept_name(file, text) != name)
    throw Error(ErrorCode::kCorrupt,
                file.string() + ": was changed while it was read; start again when it is whole");
  std::error_code failed;
  fs::create_directories(cache, failed);
  if (!failed) replace_file(kept, *hash);
  return hash;
}

}  // namespace retort::data::detail
