#include "recipes/data/detail/line_index.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace retort::data::detail {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kBlock = 64;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The last bytes of an index file. It is written from front to back, and its numbers are known only
// at its end.
struct Footer {
  char magic[16];
  uint64_t text_bytes, size, lines, numbers;
};
constexpr char kMagic[16] = {'r', 'e', 't', 'o', 'r', 't', ' ',  'l',
                             'i', 'n', 'e', 's', ' ', '1', '\n', 0};

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\v\f") == std::string_view::npos;
}

// Collects the numbers, and writes them to a file, if it may, when they outgrow the limit in
// memory.
class Builder {
 public:
  explicit Builder(fs::path index) : index_(std::move(index)) {}

  void add_line(uint64_t start, int64_t line_number) {
    if (size_ % kBlock == 0) numbers_.push_back(static_cast<uint64_t>(line_number));
    numbers_.push_back(start);
    ++size_;
    if (numbers_.size() >= kMaxNumbersInMemory && !index_.empty()) write();
  }
  // True if the index went to its file.
  bool finish(std::string_view text, int64_t lines) {
    if (!file_) return false;
    write();
    Footer footer{{},
                  text.size(),
                  static_cast<uint64_t>(size_),
                  static_cast<uint64_t>(lines),
                  file_->size_bytes() / sizeof(uint64_t)};
    std::memcpy(footer.magic, kMagic, sizeof kMagic);
    file_->write(std::as_bytes(std::span(&footer, 1)));
    file_->commit();
    return true;
  }
  std::vector<uint64_t> numbers() && { return std::move(numbers_); }
  int64_t size() const { return size_; }

 private:
  void write() {
    if (!file_) {
      RETORT_LOG(kInfo) << "indexing lines into " << index_.string();
      std::error_code error;
      fs::create_directories(index_.parent_path(), error);
      if (error)
        throw Error(ErrorCode::kUnavailable,
                    index_.parent_path().string() + ": cannot be made: " + error.message());
      file_.emplace(index_);
    }
    file_->write(std::as_bytes(std::span(numbers_)));
    numbers_.clear();
  }

  fs::path index_;
  std::optional<AtomicFile> file_;
  std::vector<uint64_t> numbers_;
  int64_t size_ = 0;
};

}  // namespace

std::string kept_name(const fs::path& file, std::string_view text) {
  constexpr size_t kSample = 4096;
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0)
    throw Error(ErrorCode::kInvalidArgument,
                "cannot look at " + file.string() + ": " + std::strerror(errno));
  std::string key;
  for (const int64_t value :
       {static_cast<int64_t>(info.st_ino), static_cast<int64_t>(text.size()),
        static_cast<int64_t>(info.st_mtim.tv_sec), static_cast<int64_t>(info.st_mtim.tv_nsec),
        static_cast<int64_t>(info.st_ctim.tv_sec), static_cast<int64_t>(info.st_ctim.tv_nsec)})
    key += std::to_string(value) + " ";
  key += text.substr(0, kSample);
  key += text.substr(text.size() - std::min(text.size(), kSample));
  return file.filename().string() + "-" + sha256_hex(key).substr(0, 16);
}

LineIndex::LineIndex(const fs::path& file, std::string_view text, const fs::path& cache) {
  const fs::path index = cache.empty() ? fs::path() : cache / (kept_name(file, text) + ".lines");
  if (!index.empty() && open(index, text)) return;
  Builder builder(index);
  // Blank lines are no rows, but they count where a message names a line.
  int64_t lines = 0;
  for (size_t at = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
       at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    ++lines;
    if (!is_blank(text.substr(at, end - at))) builder.add_line(at, lines);
    at = end + 1;
  }
  if (builder.finish(text, lines)) {
    if (!open(index, text))
      throw Error(ErrorCode::kCorrupt,
                  index.string() + ": is not what was just written (a full or failing disk?)");
    return;
  }
  const int64_t size = builder.size();
  memory_ = std::move(builder).numbers();
  memory_.shrink_to_fit();
  use(memory_, size, lines);
}

void LineIndex::use(std::span<const uint64_t> numbers, int64_t size, int64_t lines) {
  numbers_ = numbers;
  size_ = size;
  no_blank_lines_ = lines == size;
}

bool LineIndex::open(const fs::path& index, std::string_view text) {
  if (!fs::exists(index)) return false;
  file_.emplace(index);
  const std::span<const std::byte> bytes = file_->bytes();
  Footer footer{};
  if (bytes.size() >= sizeof footer)
    std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
  // Footer, size of the file and size of the text must agree: an index that was cut, or is of
  // another text, is made again.
  const uint64_t blocks = (footer.size + kBlock - 1) / kBlock;
  if (std::memcmp(footer.magic, kMagic, sizeof kMagic) != 0 || footer.text_bytes != text.size() ||
      bytes.size() != footer.numbers * sizeof(uint64_t) + sizeof footer ||
      footer.numbers != footer.size + blocks) {
    RETORT_LOG(kWarning) << index.string() << ": is damaged and is made again";
    file_.reset();
    return false;
  }
  use({reinterpret_cast<const uint64_t*>(bytes.data()), footer.numbers},
      static_cast<int64_t>(footer.size), static_cast<int64_t>(footer.lines));
  return true;
}

size_t LineIndex::start(std::string_view text, int64_t i) const {
  const auto at = static_cast<size_t>(
      numbers_[static_cast<size_t>(i / kBlock * (kBlock + 1) + 1 + i % kBlock)]);
  const bool begins = at < text.size() &&
                      (at == 0 || text[at - 1] == '\n' || (at == kByteOrderMark.size() && i == 0));
  // The text may be cut or rewritten under its mapping. A row from the wrong place would go
  // unnoticed, so each start is checked.
  if (!begins)
    throw Error(ErrorCode::kCorrupt,
                "no line begins where the index says; was the file changed while it was in use?")
        .with("line", i);
  return at;
}

int64_t LineIndex::line_number(std::string_view text, int64_t i) const {
  if (no_blank_lines_) return i + 1;
  const int64_t block = i / kBlock;
  const auto first = static_cast<int64_t>(numbers_[static_cast<size_t>(block * (kBlock + 1))]);
  const size_t from = start(text, block * kBlock);
  const size_t to = start(text, i);
  return first + std::count(text.begin() + static_cast<std::ptrdiff_t>(from),
                            text.begin() + static_cast<std::ptrdiff_t>(to), '\n');
}

}  // namespace retort::data::detail
