#include "recipes/data/jsonl.h"

#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "recipes/data/detail/content_hash.h"
#include "recipes/data/detail/decompress.h"
#include "recipes/data/detail/line_index.h"
#include "recipes/data/detail/making_lock.h"

namespace retort::data {

struct JsonlFile::Impl {
  Impl(std::filesystem::path given, const std::filesystem::path& plain,
       const std::filesystem::path& cache)
      : path(std::move(given)),
        plain_path(plain),
        cache(cache),
        file(plain),
        index(plain, file.text(), cache) {}

  std::string content_hash() const;

  std::filesystem::path path, plain_path, cache;
  MappedFile file;
  detail::LineIndex index;
  mutable std::once_flag hashed;
  mutable std::string hash;
};

// Of a large file it is kept: a run that is resumed, and whoever comes later on this host, need not
// read ten gigabytes. Of the processes that want it at once one makes it.
std::string JsonlFile::Impl::content_hash() const {
  std::optional<detail::MakingLock> lock;
  if (!cache.empty() && detail::is_hash_kept(file.text().size())) {
    std::error_code failed;
    std::filesystem::create_directories(cache, failed);
    lock.emplace(cache);
  }
  return detail::content_hash(plain_path, file.text(), cache, [] { return false; }).value();
}

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
  std::call_once(impl_->hashed, [&] { impl_->hash = impl_->content_hash(); });
  return impl_->hash;
}

}  // namespace retort::data
