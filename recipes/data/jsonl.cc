#include "recipes/data/jsonl.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "recipes/data/detail/decompress.h"

namespace retort::data {

struct JsonlFile::Impl {
  Impl(std::filesystem::path given, const std::filesystem::path& plain) : path(std::move(given)), file(plain) {
    const std::string_view text = file.text();
    if (text.starts_with("\xff\xfe") || text.starts_with(std::string_view("\xfe\xff")))
      throw Error(ErrorCode::kInvalidArgument, path.string() + ": is UTF-16 text; expected UTF-8");
    build_index(text);
  }

  void build_index(std::string_view text) {
    const size_t begin = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
    starts.reserve(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1);
    int64_t blank = 0;
    for (size_t at = begin; at < text.size();) {
      const size_t end = line_end(text, at);
      if (is_blank(text.substr(at, end - at))) {
        ++blank;
      } else {
        if (blank != (blanks.empty() ? 0 : blanks.back().second)) blanks.emplace_back(static_cast<int64_t>(starts.size()), blank);
        starts.push_back(at);
      }
      at = end + 1;
    }
    if (starts.capacity() - starts.size() > 1024) starts.shrink_to_fit();
  }

  static size_t line_end(std::string_view text, size_t from) {
    const void* found = std::memchr(text.data() + from, '\n', text.size() - from);
    return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : text.size();
  }
  static bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\v\f") == std::string_view::npos; }

  std::filesystem::path path;
  MappedFile file;
  std::vector<uint64_t> starts;                     // byte offset of each line that counts
  std::vector<std::pair<int64_t, int64_t>> blanks;  // from line .first on, .second blank lines stand before
  mutable std::once_flag hashed;
  mutable std::string hash;
};

JsonlFile::JsonlFile(const std::filesystem::path& path, const std::filesystem::path& cache) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": no such file; expected a JSONL file");
  if (!std::filesystem::is_regular_file(status))
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": is not a regular file; expected a JSONL file");
  impl_ = std::make_shared<const Impl>(path, detail::decompressed(path, cache));
}

int64_t JsonlFile::size() const { return static_cast<int64_t>(impl_->starts.size()); }

std::string_view JsonlFile::line(int64_t i) const {
  RETORT_CHECK(i >= 0 && i < size()) << "line " << i << " of " << size() << " in " << impl_->path.string();
  const std::string_view text = impl_->file.text();
  const size_t begin = impl_->starts[static_cast<size_t>(i)];
  std::string_view line = text.substr(begin, Impl::line_end(text, begin) - begin);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

int64_t JsonlFile::line_number(int64_t i) const {
  RETORT_CHECK(i >= 0 && i < size()) << "line " << i << " of " << size() << " in " << impl_->path.string();
  const auto& blanks = impl_->blanks;
  const auto after =
      std::upper_bound(blanks.begin(), blanks.end(), i, [](int64_t line, const auto& b) { return line < b.first; });
  return i + 1 + (after == blanks.begin() ? 0 : std::prev(after)->second);
}

const std::filesystem::path& JsonlFile::path() const { return impl_->path; }

std::string JsonlFile::fingerprint() const {
  std::call_once(impl_->hashed, [&] { impl_->hash = sha256_hex(impl_->file.text()); });
  return impl_->hash;
}

}  // namespace retort::data
