// Parquet and Arrow files against the rows that pyarrow reads from them (make_table_goldens.py). A
// binary of its own, so that nothing that other tests have freed hides what is allocated here.
#include "models/text/table_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "recipes/data/jsonl.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/memory_limit.h"
#include "tests/support/sanitizer.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::data {
namespace {
namespace fs = std::filesystem;

fs::path table(const std::string& name) {
  return test::source_folder() / "tests/data/tables" / name;
}

std::string all_lines(const fs::path& path) {
  models::TableRows rows(path);
  std::string text;
  for (std::string_view lines = rows.next(); !lines.empty(); lines = rows.next())
    text += lines;
  return text;
}

// The first line in which two texts differ.
std::string difference(const std::string& a, const std::string& b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a == a.end() && in_b == b.end()) return "";
  const auto at = static_cast<size_t>(in_a - a.begin());
  const size_t begin = at == 0 ? 0 : a.rfind('\n', at - 1) + 1;
  return a.substr(begin, a.find('\n', begin) - begin) + "\n" +
         b.substr(begin, b.find('\n', begin) - begin);
}

class TableRowsTest : public test::FolderTest {
 protected:
  fs::path write(const std::string& name, const std::string& bytes) const {
    put(folder_ / name, bytes);
    return folder_ / name;
  }
  fs::path cache_ = folder_ / "cache";
};

TEST_F(TableRowsTest, AreThoseOfPyarrow) {
  const std::string expected = read_file(table("rows.jsonl"));
  for (const char* name :
       {"none.parquet", "snappy.parquet", "zstd.parquet", "gzip.parquet", "lz4.parquet",
        "second_version.parquet", "uncompressed.arrow", "lz4.arrow", "zstd.arrow", "stream.arrow"})
    EXPECT_EQ(difference(all_lines(table(name)), expected), "") << name;
}

TEST_F(TableRowsTest, ColumnsWithoutAJsonTextAreNamed) {
  for (const char* name : {"snappy.parquet", "stream.arrow"}) {
    const std::string left_out = models::TableRows(table(name)).left_out();
    for (const char* column : {"day (Date32)", "price (Decimal128(10, 2))", "bytes (Binary)"})
      EXPECT_NE(left_out.find(column), std::string::npos) << name << ": " << left_out;
  }
  EXPECT_EQ(models::TableRows(table("many.parquet")).left_out(), "");
}

TEST_F(TableRowsTest, AreLinesOfAFileOfTheCache) {
  const JsonlFile plain(table("rows.jsonl"));
  for (const char* name : {"snappy.parquet", "stream.arrow"}) {
    const JsonlFile file(table(name), cache_);
    ASSERT_EQ(file.size(), plain.size());
    EXPECT_EQ(file.fingerprint(), plain.fingerprint()) << "the same rows are the same text";
    EXPECT_EQ(file.path(), table(name)) << "errors name the file of the recipe";
    EXPECT_EQ(file.line(299), plain.line(299));
    EXPECT_EQ(file.line_number(299), 300) << "a row's number is its line";

    // Once for all that use the cache.
    std::set<fs::path> made(fs::directory_iterator(cache_), {});
    const JsonlFile again(table(name), cache_);
    EXPECT_EQ(std::set<fs::path>(fs::directory_iterator(cache_), {}), made);
  }
  EXPECT_EQ(JsonlFile(table("zstd.parquet")).size(), plain.size()) << "without a cache";
}

// Ranks that begin together make one file, and all read it.
TEST_F(TableRowsTest, AreWrittenOnceForAllWhoWantThem) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&] { EXPECT_EQ(JsonlFile(table("gzip.parquet"), cache_).size(), 300); });
  for (std::thread& rank : ranks)
    rank.join();
  EXPECT_EQ(std::distance(fs::directory_iterator(cache_), {}), 1);
}

TEST_F(TableRowsTest, TwoColumnsOfOneNameAreRefused) {
  const std::string message = test::message_of([&] { models::TableRows(table("twice.parquet")); });
  EXPECT_NE(message.find("two columns of the name text"), std::string::npos) << message;
}

TEST_F(TableRowsTest, DamagedFilesAreRefusedByName) {
  const std::string parquet = read_file(table("snappy.parquet"));
  const std::string arrow = read_file(table("lz4.arrow"));
  const std::string stream = read_file(table("stream.arrow"));
  const struct {
    const char* name;
    std::string bytes;
  } files[] = {{"short.parquet", "PAR1"},
               {"cut.parquet", parquet.substr(0, parquet.size() / 2)},
               {"no_footer.parquet", parquet.substr(0, parquet.size() - 4)},
               {"cut.arrow", arrow.substr(0, arrow.size() / 2)},
               {"cut_stream.arrow", stream.substr(0, stream.size() / 2 + 1)},
               {"text.parquet", "{\"text\": \"w1\"}\n"},
               {"text.arrow", "{\"text\": \"w1\"}\n"}};
  for (const auto& file : files) {
    const fs::path path = write(file.name, file.bytes);
    const std::string message = test::message_of([&] { JsonlFile(path, cache_); });
    EXPECT_TRUE(message.starts_with(path.string() + ": ")) << message;
  }
  const std::string unbuilt = test::message_of([&] { JsonlFile(table("brotli.parquet"), cache_); });
  EXPECT_NE(unbuilt.find("brotli"), std::string::npos) << unbuilt;
  EXPECT_TRUE(!fs::exists(cache_) || fs::is_empty(cache_)) << "half a file stays";
}

// Of rows that can be read before those that cannot: where the lengths in the file are right, which
// are looked at first, and what is compressed is not.
TEST_F(TableRowsTest, DamagedRowsAreRefusedByNumber) {
  const std::string whole = read_file(table("snappy.parquet"));
  std::string numbered;
  for (size_t at = whole.size() / 4; at + 24 < whole.size() && numbered.empty(); at += 64) {
    std::string bytes = whole;
    bytes.replace(at, 24, 24, '\x5a');
    const fs::path path = write("damaged-" + std::to_string(at) + ".parquet", bytes);
    try {
      all_lines(path);
    } catch (const Error& error) {
      EXPECT_TRUE(error.message().starts_with(path.string() + ": ")) << error.message();
      if (error.message().starts_with(path.string() + ": after row ")) numbered = error.message();
    }
  }
  EXPECT_FALSE(numbered.empty()) << "no error names a row";
}

// Whatever is wrong with a Parquet file, it is an error and no crash.
TEST_F(TableRowsTest, AnyByteMayBeWrong) {
  for (const char* name : {"second_version.parquet", "snappy.parquet"}) {
    const std::string whole = read_file(table(name));
    for (uint64_t trial = 0; trial < 300; ++trial) {
      std::string bytes = whole;
      bytes[random_bits(7, trial) % bytes.size()] ^=
          static_cast<char>(1 + random_bits(8, trial) % 255);
      const fs::path path = write("fuzzed", bytes);
      try {
        all_lines(path);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      }
    }
  }
}

TEST_F(TableRowsTest, FiveMillionRowsTakeNoMemory) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer maps more memory than the limit leaves";
  constexpr int64_t kRows = 5'000'000;
  // The text has 100 MB, a row group a tenth of that.
  constexpr uint64_t kLimit = uint64_t{16} << 20;
  const auto start = std::chrono::steady_clock::now();
  int64_t count = 0;
  size_t bytes = 0;
  {
    const test::MemoryLimit limit(kLimit);
    models::TableRows rows(table("many.parquet"));
    for (std::string_view lines = rows.next(); !lines.empty(); lines = rows.next()) {
      count += std::count(lines.begin(), lines.end(), '\n');
      bytes += lines.size();
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(count, kRows);
  EXPECT_EQ(bytes, size_t{20} * kRows);
  std::printf("%lld rows in %.2f s\n", static_cast<long long>(count), took.count());
}

}  // namespace
}  // namespace retort::data
