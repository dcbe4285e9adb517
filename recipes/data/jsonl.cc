#include "recipes/data/jsonl.h"

#include <mutex>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "recipes/data/detail/content_hash.h"
#include "recipes/data/detail/decompress.h"
#include "recipes/data/detail/line_index.h"

namespace retort::data {

struct JsonlFile::Impl {
  Impl(std::filesystem::path given, const std::filesystem::path& plain,
       const std::filesystem::path& cache)
      : path(std::move(given)),
        plain_path(plain),
        cache(cache),
        file(plain),
        index(plain, file.text(), cache) {}

  std::filesystem::path path, plain_path, cache;
  MappedFile file;
  detail::LineIndex index;
  mutable std::mutex hashing;
  mutable std::string hash;  // empty until it is made
};

JsonlFile::JsonlFile(const std::filesystem::path& path, const std::filesystem::path& cache) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + ": no such file; expected a JSONL file");
  if (!std::filesystem::is_regular_file(status))
    throw Error(ErrorCode::kInvalidArgument,
                path.string() + ": is not a regular file; expected a JSONL file");
  const detail::PlainText plain(path, cache);
  impl_ = std::make_shared<const Impl>(path, plain.path(), cache);
}

int64_t JsonlFile::size() const { return impl_->index.size(); }

std::string_view JsonlFile::line(int64_t i) const {
  RETORT_CHECK(i >= 0 && i < size())
      << "line " << i << " of " << size() << " in " << impl_->path.string();
  const std::string_view text = impl_->file.text();
  try {
    const size_t begin = impl_->index.start(text, i);
    std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  } catch (const Error& error) {
    throw error.with("file", impl_->path.string());
  }
}

int64_t JsonlFile::line_number(int64_t i) const {
  RETORT_CHECK(i >= 0 && i < size())
      << "line " << i << " of " << size() << " in " << impl_->path.string();
  return impl_->index.line_number(impl_->file.text(), i);
}

const std::filesystem::path& JsonlFile::path() const { return impl_->path; }

std::string JsonlFile::fingerprint() const {
  return fingerprint([] { return false; });
}

// The hash of a large file is kept: a run that is resumed, and whoever comes later on this host,
// need not read ten gigabytes.
std::string JsonlFile::fingerprint(const std::function<bool()>& stop) const {
  const std::lock_guard lock(impl_->hashing);
  if (!impl_->hash.empty()) return impl_->hash;
  const auto hash = detail::content_hash(impl_->plain_path, impl_->file.text(), impl_->cache, stop);
  if (!hash)
    throw Error(ErrorCode::kCancelled,
                impl_->path.string() + ": its SHA-256 was stopped before it was made");
  impl_->hash = *hash;
  return impl_->hash;
}

}  // namespace retort::data
