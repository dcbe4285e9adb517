#include "recipes/data/detail/decompress.h"

#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "models/text/table_rows.h"
#include "recipes/data/detail/creation_lock.h"
#include "recipes/data/detail/json_rows.h"

namespace retort::data::detail {
namespace fs = std::filesystem;
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;

[[noreturn]] void damaged(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, path.string() + ": cannot be read: " + what);
}

// The bytes that a call of inflate() took of the input, and those it made.
struct Inflated {
  int status = Z_OK;
  size_t used = 0;
  size_t made = 0;
};
Inflated inflate_some(z_stream& stream, std::string_view input, std::vector<char>& buffer) {
  const size_t offered = std::min(input.size(), kChunkBytes);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.data()));
  stream.avail_in = static_cast<uInt>(offered);
  stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
  stream.avail_out = static_cast<uInt>(buffer.size());
  const int status = inflate(&stream, Z_NO_FLUSH);
  return {status, offered - stream.avail_in, buffer.size() - stream.avail_out};
}

void inflate_all(const fs::path& path, std::string_view input, AtomicFile& out) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK)
    throw Error(ErrorCode::kResourceExhausted, "zlib cannot start");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> guard(&stream, inflateEnd);

  // A file is a sequence of members. What follows the last one may be the padding of a tape, which
  // gzip accepts.
  std::vector<char> buffer(kChunkBytes);
  bool member_open = true;
  while (member_open || !input.empty()) {
    if (!member_open) {
      if (input.find_first_not_of('\0') == std::string_view::npos) return;
      if (inflateReset(&stream) != Z_OK) damaged(path, "zlib cannot start the next member");
      member_open = true;
    }
    const auto [status, used, made] = inflate_some(stream, input, buffer);
    input.remove_prefix(used);
    out.write(std::string_view(buffer.data(), made));

    // No progress inside a member means that the file ends there; without this check a cut file
    // would loop for ever.
    if (status == Z_STREAM_END) {
      member_open = false;
    } else if (status == Z_BUF_ERROR || (status == Z_OK && used == 0 && made == 0)) {
      damaged(path, "the gzip data ends too early (cut file?)");
    } else if (status != Z_OK) {
      damaged(path, stream.msg ? stream.msg : "bad gzip data");
    }
  }
}

void unzstd_all(const fs::path& path, std::string_view input, AtomicFile& out) {
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                        ZSTD_freeDStream);
  if (!stream) throw Error(ErrorCode::kResourceExhausted, "zstd cannot start");
  std::vector<char> buffer(kChunkBytes);
  ZSTD_inBuffer in{input.data(), input.size(), 0};
  size_t pending = 1;
  for (;;) {
    ZSTD_outBuffer block{buffer.data(), buffer.size(), 0};
    pending = ZSTD_decompressStream(stream.get(), &block, &in);
    if (ZSTD_isError(pending)) damaged(path, ZSTD_getErrorName(pending));
    out.write(std::string_view(buffer.data(), block.pos));
    if (in.pos == in.size && block.pos < block.size) break;
  }
  if (pending != 0) damaged(path, "the Zstandard data ends too early (cut file?)");
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw Error(ErrorCode::kUnavailable, folder.string() + ": cannot be made: " + error.message());
}

fs::path make_temporary_folder() {
  std::string name = (fs::temp_directory_path() / "retort-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw Error(ErrorCode::kUnavailable, name + ": cannot be made: " + std::strerror(errno) +
                                             "; TMPDIR names another place");
  return name;
}

using Content = PlainText::Content;

Content content_of(std::string_view bytes) {
  if (bytes.starts_with("\x1f\x8b")) return Content::kGzip;
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return Content::kZstd;
  if (models::is_table(bytes)) return Content::kTable;
  return is_json_array(bytes) ? Content::kArray : Content::kText;
}

// Returns the content that the ending of a name promises; other endings promise none.
Content promised_by(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".gz") return Content::kGzip;
  if (extension == ".zst") return Content::kZstd;
  if (extension == ".parquet" || extension == ".arrow") return Content::kTable;
  return Content::kText;
}

void write_rows(const fs::path& path, AtomicFile& out) {
  models::TableRows rows(path);
  if (!rows.left_out().empty()) {
    RETORT_LOG(kWarning) << path.string()
                         << ": columns without a JSON text are left out: " << rows.left_out();
  }
  for (std::string_view lines = rows.next(); !lines.empty(); lines = rows.next())
    out.write(lines);
}

// The file as the recipe names it, for messages, and the one that is read: itself, or its
// decompressed text.
struct Names {
  const fs::path& given;
  const fs::path& read;
};

void write_plain(const Names& names, std::string_view bytes, Content content,
                 const fs::path& plain) {
  const bool rows = content == Content::kTable || content == Content::kArray;
  RETORT_LOG(kInfo) << (rows ? "writing the rows of " : "decompressing ") << names.given.string()
                    << (rows ? " as JSON to " : " into ") << plain.string();
  AtomicFile out(plain);
  switch (content) {
    case Content::kGzip: inflate_all(names.given, bytes, out); break;
    case Content::kZstd: unzstd_all(names.given, bytes, out); break;
    case Content::kTable: write_rows(names.read, out); break;
    case Content::kArray:
      array_to_lines(names.given, bytes, [&](std::string_view lines) { out.write(lines); });
      break;
    case Content::kText: out.write(bytes); break;
  }
  out.commit();
}

}  // namespace

PlainText::PlainText(const fs::path& path, const fs::path& cache) : path_(path) {
  try {
    // A table or an array may be compressed, so there are up to two steps.
    for (int step = 0; step < 2; ++step) {
      const MappedFile file(path_);
      const Content content = content_of(file.text());
      if (content == Content::kText) break;
      make(path, file.text(), content, cache);
    }
    const MappedFile file(path_);
    check_json_lines(path, file.text());
    if (path_ == path && promised_by(path) != Content::kText)
      damaged(path, "it does not begin like a " + path.extension().string() + " file");
  } catch (...) {  // no destructor will run
    std::error_code ignored;
    if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
    throw;
  }
}

void PlainText::make(const fs::path& path, std::string_view bytes, Content content,
                     const fs::path& cache) {
  const fs::path from = path_;
  if (cache.empty()) {
    if (temporary_.empty()) temporary_ = make_temporary_folder();
    path_ = temporary_ / (from == path ? path.stem() : fs::path(path.stem().string() + ".rows"));
    return write_plain({path, from}, bytes, content, path_);
  }

  // The file is named after the content, so that one that is there is the right one. Another
  // process may have made it while this one waited for the lock.
  path_ = cache / (path.stem().string() + "-" + sha256_hex(bytes).substr(0, 16));
  if (fs::exists(path_)) return;
  make_folder(cache);
  const CreationLock lock(cache);
  if (!fs::exists(path_)) write_plain({path, from}, bytes, content, path_);
}

PlainText::~PlainText() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

}  // namespace retort::data::detail
