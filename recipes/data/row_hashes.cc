#include "recipes/data/row_hashes.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/hash.h"
#include "recipes/data/detail/content_hash.h"
#include "recipes/data/detail/decompress.h"
#include "recipes/data/detail/keep_hashes.h"

namespace retort::data {
namespace fs = std::filesystem;
namespace {

// The last bytes of the file. It is written from front to back, and the number of rows is known
// only at its end.
struct HashFooter {
  char magic[16];
  uint64_t rows;
};
constexpr char kHashMagic[16] = {'r', 'e', 't', 'o', 'r', 't',  ' ', 'r',
                                 'o', 'w', 's', ' ', '1', '\n', 0,   0};
constexpr size_t kHashesAtOnce = size_t{1} << 16;

fs::path hash_path(const fs::path& folder, const std::string& fingerprint) {
  return folder / ("rows-" + fingerprint.substr(0, 32) + ".hashes");
}

bool is_blank_row(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

// Writes the hashes of the rows, which it tells apart as JsonlFile does. False: it was stopped, and
// no file is left.
bool write_hashes(std::string_view text, const std::string& fingerprint, const fs::path& path,
                  const std::function<bool()>& stop) {
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                path.parent_path().string() + ": cannot be made: " + failed.message());
  AtomicFile out(path);
  Sha256 content;
  std::vector<uint64_t> hashes;
  uint64_t rows = 0;
  for (size_t at = 0; at < text.size();) {
    if (stop()) return false;
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    content.update(text.substr(at, end + 1 - at));
    at = end + 1;
    if (is_blank_row(line)) continue;
    if (line.ends_with('\r')) line.remove_suffix(1);
    hashes.push_back(checksum64(std::as_bytes(std::span(line.data(), line.size()))));
    ++rows;
    if (hashes.size() < kHashesAtOnce) continue;
    out.write(std::as_bytes(std::span(hashes)));
    hashes.clear();
  }
  out.write(std::as_bytes(std::span(hashes)));
  // The file may be written to while it is read; hashes under the wrong fingerprint would speak for
  // rows that they are not of.
  if (content.hex_digest() != fingerprint)
    throw Error(ErrorCode::kCorrupt, "the file was changed while its rows were hashed");

  HashFooter footer{{}, rows};
  std::memcpy(footer.magic, kHashMagic, sizeof kHashMagic);
  out.write(std::as_bytes(std::span(&footer, 1)));
  out.commit();
  return true;
}

}  // namespace

std::optional<RowHashes> RowHashes::find(const fs::path& folder, const std::string& fingerprint) {
  const fs::path path = hash_path(folder, fingerprint);
  if (folder.empty() || !fs::is_regular_file(path)) return std::nullopt;
  RowHashes hashes{MappedFile(path)};
  if (!hashes.is_whole()) return std::nullopt;
  return hashes;
}

bool detail::keep_hashes(const JsonlFile& file, const fs::path& folder,
                         const std::function<bool()>& stop) {
  const PlainText plain(file.path(), folder);
  const MappedFile text(plain.path());
  const auto fingerprint = content_hash(plain.path(), text.text(), folder, stop);
  if (!fingerprint) return false;
  if (RowHashes::find(folder, *fingerprint)) return true;
  return write_hashes(text.text(), *fingerprint, hash_path(folder, *fingerprint), stop);
}

RowHashes RowHashes::keep(const JsonlFile& file, const fs::path& folder) {
  const std::string fingerprint = file.fingerprint();
  if (auto there = find(folder, fingerprint)) return std::move(*there);
  detail::keep_hashes(file, folder, [] { return false; });
  auto made = find(folder, fingerprint);
  if (!made)
    throw Error(ErrorCode::kCorrupt,
                file.path().string() + ": the hashes of its rows are not in " +
                    hash_path(folder, fingerprint).string() +
                    " (the file was changed meanwhile, or the disk is full or failing?)");
  return std::move(*made);
}

bool RowHashes::is_whole() const {
  const std::span<const std::byte> bytes = file_.bytes();
  HashFooter footer{};
  if (bytes.size() < sizeof footer) return false;
  std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  return std::memcmp(footer.magic, kHashMagic, sizeof kHashMagic) == 0 &&
         bytes.size() == footer.rows * sizeof(uint64_t) + sizeof footer;
}

int64_t RowHashes::size() const {
  return static_cast<int64_t>((file_.bytes().size() - sizeof(HashFooter)) / sizeof(uint64_t));
}

uint64_t RowHashes::at(int64_t row) const {
  RETORT_CHECK(row >= 0 && row < size()) << "row " << row << " of " << size();
  uint64_t hash = 0;
  std::memcpy(&hash, file_.bytes().data() + static_cast<size_t>(row) * sizeof hash, sizeof hash);
  return hash;
}

}  // namespace retort::data
