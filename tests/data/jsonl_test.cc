#include "recipes/data/jsonl.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "recipes/data/detail/content_hash.h"
#include "recipes/data/detail/keep_hashes.h"
#include "recipes/data/detail/line_index.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
namespace fs = std::filesystem;
using test::TemporaryFolder;

using Lines = std::vector<std::pair<int64_t, std::string>>;
Lines lines_of(const JsonlFile& file) {
  Lines lines;
  for (int64_t i = 0; i < file.size(); ++i)
    lines.emplace_back(file.line_number(i), std::string(file.line(i)));
  return lines;
}

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

TEST(JsonlFile, LinesAndTheirNumbers) {
  const TemporaryFolder folder;
  const struct {
    const char* what;
    std::string text;
    Lines lines;
  } cases[] = {
      {"plain", "a\nb\n", {{1, "a"}, {2, "b"}}},
      {"no newline at the end", "a\nb", {{1, "a"}, {2, "b"}}},
      {"CRLF", "a\r\nb\r\n", {{1, "a"}, {2, "b"}}},
      {"BOM",
       "\xef\xbb\xbf"
       "a\nb\n",
       {{1, "a"}, {2, "b"}}},
      {"blank lines", "\n \t\na\n\r\n\nb\nc\n\n", {{3, "a"}, {6, "b"}, {7, "c"}}},
      {"only blank lines", "\n  \n", {}},
      {"empty", "", {}},
      {"BOM alone", "\xef\xbb\xbf", {}},
  };
  for (const auto& c : cases)
    EXPECT_EQ(lines_of(JsonlFile(folder.write("f.jsonl", c.text))), c.lines) << c.what;
}

TEST(JsonlFile, RefusesWhatIsNotJsonl) {
  const TemporaryFolder folder;
  EXPECT_NE(test::message_of([&] { JsonlFile(folder.path() / "none.jsonl"); }).find("none.jsonl"),
            std::string::npos);
  EXPECT_NE(test::message_of([&] { JsonlFile file(folder.path()); }).find("not a regular file"),
            std::string::npos);
  const auto utf16 = folder.write("u.jsonl", std::string_view("\xff\xfe{\0}\0", 6));
  EXPECT_NE(test::message_of([&] { JsonlFile file(utf16); }).find("UTF-16"), std::string::npos);
  const auto fake = folder.write("f.jsonl.gz", "{}\n");
  EXPECT_NE(test::message_of([&] { JsonlFile file(fake); }).find("does not begin like"),
            std::string::npos);
}

TEST(JsonlFile, DecompressesOnceIntoTheCache) {
  const TemporaryFolder folder;
  std::string text;  // more than one buffer
  for (int i = 0; i < 200000; ++i)
    text += "{\"text\":\"row " + std::to_string(i) + "\"}\n";
  const JsonlFile plain(folder.write("p.jsonl", text));
  const size_t half = text.find('\n', text.size() / 2) + 1;
  const struct {
    std::string name, bytes;
  } files[] = {
      {"a.jsonl.gz", gzip(text)},
      {"two-members.jsonl.gz", gzip(text.substr(0, half)) + gzip(text.substr(half))},
      {"padded.jsonl.gz", gzip(text) + std::string(512, '\0')},
      {"a.jsonl.zst", zstd(text)},
      {"two-frames.jsonl.zst", zstd(text.substr(0, half)) + zstd(text.substr(half))},
  };

  for (const auto& file : files) {
    const fs::path cache = folder.path() / ("cache-" + file.name);
    const fs::path path = folder.write(file.name, file.bytes);
    const JsonlFile read(path, cache);
    ASSERT_EQ(read.size(), 200000) << file.name;
    EXPECT_EQ(read.line(199999), "{\"text\":\"row 199999\"}") << file.name;
    EXPECT_EQ(read.path(), path) << "errors name the file of the recipe";
    EXPECT_EQ(read.fingerprint(), plain.fingerprint()) << file.name;

    // The cache has the text and its index.
    std::vector<fs::path> made(fs::directory_iterator(cache), {});
    ASSERT_EQ(made.size(), 2u) << file.name;
    if (made[0].extension() == ".lines") std::swap(made[0], made[1]);
    EXPECT_EQ(made[1].extension(), ".lines");

    // The same content is not decompressed again; other content has another name in the cache.
    const auto time = fs::last_write_time(made[0]);
    const JsonlFile again(path, cache);
    EXPECT_EQ(fs::last_write_time(made[0]), time) << "decompressed twice";
    EXPECT_EQ(again.size(), 200000);
    folder.write(file.name, gzip("{}\n"));
    EXPECT_EQ(JsonlFile(path, cache).size(), 1) << file.name;
  }
}

// 64 MiB and a line.
std::string large_text() {
  const std::string line = "{\"text\":\"" + std::string((size_t{1} << 20) - 12, 'x') + "\"}\n";
  std::string text = "{}\n";
  for (int i = 0; i < 64; ++i)
    text += line;
  return text;
}

std::vector<fs::path> kept_hashes(const fs::path& cache) {
  std::vector<fs::path> kept;
  for (const auto& entry : fs::directory_iterator(cache))
    if (entry.path().extension() == ".sha256") kept.push_back(entry.path());
  return kept;
}

// The look at all rows, which reads the file beside training, keeps what a later start needs.
TEST(JsonlFile, TheLookAtRowsKeepsTheHashOfALargeFile) {
  const TemporaryFolder folder;
  const std::string text = large_text();
  const fs::path path = folder.write("large.jsonl", text), cache = folder / "cache";
  ASSERT_TRUE(detail::keep_hashes(JsonlFile(path, cache), cache, [] { return false; }));
  const auto kept = kept_hashes(cache);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(read_file(kept[0]), sha256_hex(text));

  const JsonlFile small(folder.write("small.jsonl", "{}\n"), cache);
  ASSERT_TRUE(detail::keep_hashes(small, cache, [] { return false; }));
  EXPECT_EQ(kept_hashes(cache).size(), 1u);
}

TEST(JsonlFile, NoHashIsOfAFileThatIsChangedMeanwhile) {
  const TemporaryFolder folder;
  const std::string text = large_text();
  const fs::path path = folder.write("large.jsonl", text), cache = folder / "cache";
  int asked = 0;
  const auto changes = [&] {
    if (++asked == 3) folder.write("large.jsonl", text + "{}\n");
    return false;
  };
  const auto error = test::thrown([&] { detail::content_hash(path, text, cache, changes); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  EXPECT_NE(error->message().find(path.string() + ": was changed while it was read"),
            std::string::npos)
      << error->message();
  EXPECT_FALSE(fs::exists(cache) && !kept_hashes(cache).empty());

  asked = 0;
  const auto stops = [&] { return ++asked == 3; };
  EXPECT_FALSE(detail::content_hash(path, text + "{}\n", cache, stops));
  EXPECT_FALSE(fs::exists(cache) && !kept_hashes(cache).empty());
}

// Rights are no content: the hash is that of the file, and has no name that anybody looks for.
TEST(JsonlFile, AHashOutlivesAChangeOfRights) {
  const TemporaryFolder folder;
  const std::string text = large_text();
  const fs::path path = folder.write("large.jsonl", text), cache = folder / "cache";
  const std::string name = detail::kept_name(path, text);
  const auto changes = [&] {
    while (detail::kept_name(path, text) == name) {
      fs::permissions(path, fs::perms::owner_read);
      fs::permissions(path, fs::perms::owner_all);
    }
    return false;
  };
  EXPECT_EQ(detail::content_hash(path, text, cache, changes), sha256_hex(text));
  EXPECT_TRUE(kept_hashes(cache).empty());
}

TEST(JsonlFile, AHashThatWasStoppedIsMadeLater) {
  const TemporaryFolder folder;
  const JsonlFile file(folder.write("a.jsonl", "{}\n"));
  test::expect_error(ErrorCode::kCancelled, "a.jsonl",
                     [&] { file.fingerprint([] { return true; }); });
  EXPECT_EQ(file.fingerprint(), sha256_hex("{}\n"));
}

// Commands that look at data have no cache.
TEST(JsonlFile, DecompressesWithoutACacheAndLeavesNothing) {
  const TemporaryFolder folder, temporary;
  const char* const usual = std::getenv("TMPDIR");
  const std::string before = usual == nullptr ? "" : usual;
  ::setenv("TMPDIR", temporary.path().c_str(), 1);
  {
    const JsonlFile read(folder.write("a.jsonl.gz", gzip("{}\n{\"text\": \"b\"}\n")));
    const std::string cut = gzip("{}\n").substr(0, 12);
    EXPECT_NE(test::message_of([&] { JsonlFile(folder.write("cut.gz", cut)); }).find("cut.gz"),
              std::string::npos);
    EXPECT_TRUE(fs::is_empty(temporary.path()));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2) << "beside the data";
    EXPECT_EQ(read.line(1), "{\"text\": \"b\"}") << "the map stays";
  }
  if (usual == nullptr)
    ::unsetenv("TMPDIR");
  else
    ::setenv("TMPDIR", before.c_str(), 1);
}

TEST(JsonlFile, DamagedArchivesAreErrorsAndLeaveNothing) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += "{\"text\":\"row " + std::to_string(i * 7919) + "\"}\n";
  const std::string gz = gzip(text), zst = zstd(text);
  std::string flipped = gz;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 0x55);
  const struct {
    std::string name, bytes;
  } files[] = {{"cut.gz", gz.substr(0, gz.size() / 2)},
               {"cut.zst", zst.substr(0, zst.size() / 2)},
               {"head.gz", gz.substr(0, 5)},
               {"tail.gz", gz + "garbage"},
               {"flipped.gz", flipped}};
  for (const auto& file : files) {
    const fs::path path = folder.write(file.name, file.bytes), cache = folder.path() / "cache";
    const std::string message = test::message_of([&] { JsonlFile opened(path, cache); });
    EXPECT_NE(message.find(file.name), std::string::npos) << file.name << ": " << message;
    EXPECT_TRUE(!fs::exists(cache) || fs::is_empty(cache)) << file.name;
  }
}

TEST(JsonlFile, FingerprintIsOfTheContent) {
  const TemporaryFolder folder;
  EXPECT_EQ(JsonlFile(folder.write("a", "{}\n")).fingerprint(),
            JsonlFile(folder.write("b", "{}\n")).fingerprint());
  EXPECT_NE(JsonlFile(folder.write("a", "{}\n")).fingerprint(),
            JsonlFile(folder.write("b", "{ }\n")).fingerprint());
}

// It takes a second for each gigabyte or so, before the first step of every start.
TEST(Jsonl, TheFingerprintOfALargeFileIsKept) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 65; ++i)
    text += std::string((size_t{1} << 20) - 1, 'a') + "\n";
  const fs::path file = folder.write("large.jsonl", text);
  const fs::path cache = folder / "cache";
  const std::string hash = JsonlFile(file).fingerprint();
  EXPECT_FALSE(fs::exists(cache));
  EXPECT_EQ(JsonlFile(file, cache).fingerprint(), hash);

  std::vector<fs::path> kept;
  for (const auto& entry : fs::directory_iterator(cache))
    kept.push_back(entry.path());
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(read_file(kept[0]), hash);
  const std::string other(64, 'f');
  write_file_atomically(kept[0], other);
  EXPECT_EQ(JsonlFile(file, cache).fingerprint(), other) << "the file was read again";
  write_file_atomically(kept[0], "half of i");
  EXPECT_EQ(JsonlFile(file, cache).fingerprint(), hash);

  // Another content, of the same size and with the same ends.
  text[text.size() / 2] = 'b';
  folder.write("large.jsonl", text);
  EXPECT_NE(JsonlFile(file, cache).fingerprint(), hash);
}

}  // namespace
}  // namespace retort::data
