// Decodes: Parquet and Arrow files, whose lengths are checked (models/text/detail/table_lengths.h)
//   before the libraries see them.
// Holds: rows are lines of JSON objects.
#include "models/text/table_rows.h"

#include <sys/mman.h>
#include <unistd.h>

#include "engines/wire/base64.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::table_rows {
namespace {

// A file in memory, as only files are read.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("table", MFD_CLOEXEC)) {
    expect(::write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
           "there is no memory for a file");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

bool decode(std::string_view bytes) {
  if (!models::is_table(bytes)) return false;
  const MemoryFile file(bytes);
  models::TableRows rows(file.path());
  // A few bytes may say that a value stands there a million times.
  constexpr int kPieces = 4;
  for (int piece = 0; piece < kPieces; ++piece) {
    const std::string_view lines = rows.next();
    if (lines.empty()) break;
    expect(lines.front() == '{' && lines.ends_with("}\n"), "rows that are no objects");
  }
  return true;
}

// By pyarrow 26: a stream with a dictionary, a file whose buffers are compressed by LZ4, and
// Parquet with snappy; of three rows each.
constexpr const char* kStream =
    "/////5AAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAEAAAAvP///wQAAAABAAAAFAAAABAAGAAIAAYABwAMABAA"
    "FAAQAAAAAAABBRQAAABAAAAAHAAAAAQAAAAAAAAAAQAAAGsAAAAIAAgAAAAEAAgAAAAMAAAACAAMAAgABwAIAAAA"
    "AAAAASAAAAAEAAQABAAAAAAAAAD/////qAAAABQAAAAAAAAADAAUAAYABQAIAAwADAAAAAACBAAUAAAAGAAAAAAA"
    "AAAIAAoAAAAEAAgAAAAQAAAAAAAKABgADAAEAAgACgAAAEwAAAAQAAAAAgAAAAAAAAAAAAAAAwAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAAwAAAAAAAAAEAAAAAAAAAACAAAAAAAAAAAAAAABAAAAAgAAAAAAAAAAAAAAAAAAAAAA"
    "AAABAAAAAgAAAAAAAAB4eQAAAAAAAP////+IAAAAFAAAAAAAAAAMABYABgAFAAgADAAMAAAAAAMEABgAAAAQAAAA"
    "AAAAAAAACgAYAAwABAAIAAoAAAA8AAAAEAAAAAMAAAAAAAAAAAAAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAMAAAAAAAAAAAAAAABAAAAAwAAAAAAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAD/////AAAAAA==";

constexpr const char* kFile =
    "QVJST1cxAAD/////cAAAABAAAAAAAAoADAAGAAUACAAKAAAAAAEEAAwAAAAIAAgAAAAEAAgAAAAEAAAAAQAAABQA"
    "AAAQABQACAAGAAcADAAAABAAEAAAAAAAAQUQAAAAGAAAAAQAAAAAAAAAAQAAAGEAAAAEAAQABAAAAAAAAAD/////"
    "qAAAABQAAAAAAAAADAAYAAYABQAIAAwADAAAAAADBAAcAAAAYAAAAAAAAAAAAAAADAAcABAABAAIAAwADAAAAFgA"
    "AAAcAAAAFAAAAAMAAAAAAAAAAAAAAAQABAAEAAAAAwAAAAAAAAAAAAAAGAAAAAAAAAAYAAAAAAAAACcAAAAAAAAA"
    "QAAAAAAAAAAbAAAAAAAAAAAAAAABAAAAAwAAAAAAAAABAAAAAAAAAAEAAAAAAAAABCJNGGBAggEAAIAFAAAAABAA"
    "AAAAAAAABCJNGGBAghAAAIAAAAAAAgAAAAIAAAAEAAAAAAAAAAAEAAAAAAAAAAQiTRhgQIIEAACAdzF3MQAAAAAA"
    "AAAAAP////8AAAAAEAAAAAwAFAAGAAgADAAQAAwAAAAAAAQAOAAAACgAAAAEAAAAAQAAAIAAAAAAAAAAsAAAAAAA"
    "AABgAAAAAAAAAAAAAAAAAAAACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUAAgABgAHAAwAAAAQABAAAAAAAAEF"
    "EAAAABgAAAAEAAAAAAAAAAEAAABhAAAABAAEAAQAAACYAAAAQVJST1cx";

constexpr const char* kParquet =
    "UEFSMRUEFQwVEEwVAhUAEgAABhQCAAAAdzEVABUSFRYsFQYVEBUGFQYcAAAACSACAAAAAwUBBAAVBBksNQAYBnNj"
    "aGVtYRUCABUMJQIYAWElAEwcAAAAFgYZHBkcJgAcFQwZNQAGEBkYAWEVAhYGFmAWaCY0JggpLBUEFQAVAgAVABUQ"
    "FQIAPBYIGQYZJgIEAAAAFmAWBiYIFmgAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9uIDI2LjAuMRkcHAAAAIwA"
    "AABQQVIx";

std::string bytes_of(const char* base64) {
  engines::Base64Bytes bytes;
  bytes.add(base64);
  const std::vector<uint8_t> taken = bytes.take();
  return {taken.begin(), taken.end()};
}

std::vector<Seed> seeds() {
  return {
      {"stream", bytes_of(kStream)}, {"file", bytes_of(kFile)}, {"parquet", bytes_of(kParquet)}};
}

}  // namespace

Target target() { return {"table_rows", decode, seeds}; }

}  // namespace retort::fuzz::table_rows
