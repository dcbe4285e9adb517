#include "recipes/data/row_hashes.h"

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"

namespace retort::data {
namespace fs = std::filesystem;
namespace {

// The last bytes of the file.
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

void write_hashes(const JsonlFile& file, const fs::path& path) {
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  if (failed)
    throw Error(ErrorCode::kUnavailable,
                path.parent_path().string() + ": cannot be made: " + failed.message());
  AtomicFile out(path);
  std::vector<uint64_t> hashes;
  for (int64_t row = 0; row < file.size(); ++row) {
    const std::string_view line = file.line(row);
    hashes.push_back(checksum64(std::as_bytes(std::span(line.data(), line.size()))));
    if (hashes.size() < kHashesAtOnce) continue;
    out.write(std::as_bytes(std::span(hashes)));
    hashes.clear();
  }
  out.write(std::as_bytes(std::span(hashes)));

  HashFooter footer{{}, static_cast<uint64_t>(file.size())};
  std::memcpy(footer.magic, kHashMagic, sizeof kHashMagic);
  out.write(std::as_bytes(std::span(&footer, 1)));
  out.commit();
}

}  // namespace

std::optional<RowHashes> RowHashes::find(const fs::path& folder, const std::string& fingerprint) {
  const fs::path path = hash_path(folder, fingerprint);
  if (folder.empty() || !fs::is_regular_file(path)) return std::nullopt;
  RowHashes hashes{MappedFile(path)};
  if (!hashes.is_whole()) return std::nullopt;
  return hashes;
}

RowHashes RowHashes::keep(const JsonlFile& file, const fs::path& folder) {
  const std::string fingerprint = file.fingerprint();
  if (auto there = find(folder, fingerprint)) return std::move(*there);
  write_hashes(file, hash_path(folder, fingerprint));
  auto made = find(folder, fingerprint);
  if (!made)
    throw Error(ErrorCode::kCorrupt,
                hash_path(folder, fingerprint).string() +
                    ": is not what was just written (a full or failing disk?)");
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
