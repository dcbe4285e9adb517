// Parquet and Arrow files whose lengths are not true: errors, without the memory that they claim.
#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "base/random.h"
#include "models/text/table_rows.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/memory_limit.h"
#include "tests/support/sanitizer.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::models {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kMostMemory = uint64_t{1} << 30;
constexpr int64_t kHuge = int64_t{1} << 46;

std::string golden(const std::string& name) {
  return read_file(test::source_folder() / "tests/data/tables" / name);
}

template <class Number>
Number number_at(const std::string& bytes, size_t place) {
  Number value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}
template <class Number>
void put_number(std::string& bytes, size_t place, Number value) {
  std::memcpy(bytes.data() + place, &value, sizeof value);
}

// Where field `field` of the message that begins at `message` lies: a table of FlatBuffers.
size_t field_place(const std::string& bytes, size_t message, size_t field) {
  const size_t table = message + number_at<uint32_t>(bytes, message);
  const size_t fields = table - static_cast<size_t>(number_at<int32_t>(bytes, table));
  return table + number_at<uint16_t>(bytes, fields + 4 + 2 * field);
}

// A value of Thrift's compact protocol: seven bits a byte, the lowest first.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7)
    bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

// A file of Parquet whose footer has these elements of a schema, and a list of groups of rows that
// begins with `groups`.
std::string parquet_of(const std::vector<std::string>& schema, const std::string& groups) {
  std::string footer = "\x15" + varint(2);       // version: 1
  footer += "\x19\xfc" + varint(schema.size());  // schema
  for (const std::string& element : schema)
    footer += element;
  footer += std::string("\x16\x00", 2) + "\x19" + groups + '\0';  // rows: 0, groups of rows
  std::string length(4, '\0');
  put_number(length, 0, static_cast<uint32_t>(footer.size()));
  return "PAR1" + footer + length + "PAR1";
}
// "x", which has one child or is a column of 32-bit integers.
std::string group_element() { return std::string("\x35\x00\x18\x01x\x15\x02\x00", 8); }
std::string column_element() { return std::string("\x15\x02\x25\x00\x18\x01x\x00", 8); }

class TableLengths : public test::FolderTest {
 protected:
  // Reads all rows; what went wrong, "" if nothing did.
  std::string error_of(const std::string& bytes) const {
    const fs::path path = folder_ / "table";
    put(path, bytes);
    try {
      TableRows rows(path);
      while (!rows.next().empty()) {
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      const std::string prefix = path.string() + ": ";
      EXPECT_TRUE(error.message().starts_with(prefix)) << error.message();
      return error.message().substr(std::min(prefix.size(), error.message().size()));
    }
    return "";
  }
  void expect_refused(const std::string& bytes, const std::string& part) const {
    const std::string message = error_of(bytes);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
};

TEST_F(TableLengths, ABodyLargerThanItsStreamIsRefused) {
  std::string bytes = golden("training.arrow");
  ASSERT_EQ(error_of(bytes), "");
  // The schema, then the first batch of rows; each behind a mark and its length.
  const size_t second = 8 + number_at<uint32_t>(bytes, 4);
  put_number(bytes, field_place(bytes, second + 8, 3), kHuge);
  expect_refused(bytes, "damaged Arrow data: a message's body of 70368744177664 bytes");
  put_number(bytes, field_place(bytes, second + 8, 3), int64_t{-8});
  expect_refused(bytes, "a message's body of -8");

  bytes = golden("training.arrow");
  put_number(bytes, second + 4, int32_t{0x7ffffff0});
  expect_refused(bytes, "a message of 2147483632 bytes");
}

TEST_F(TableLengths, ABufferOutsideOfItsBodyIsRefused) {
  std::string bytes = golden("training.arrow");
  const size_t second = 8 + number_at<uint32_t>(bytes, 4) + 8;
  const size_t header = field_place(bytes, second, 2);
  const size_t buffers = field_place(bytes, header, 2);
  const size_t first = buffers + number_at<uint32_t>(bytes, buffers) + 4;
  put_number(bytes, first + 16 + 8, kHuge);  // the second buffer's length
  expect_refused(bytes, "a buffer of 70368744177664 bytes");
}

TEST_F(TableLengths, ValuesWithoutBytesAreFew) {
  std::string bytes = golden("training.arrow");
  const size_t second = 8 + number_at<uint32_t>(bytes, 4) + 8;
  const size_t header = field_place(bytes, second, 2);
  put_number(bytes, field_place(bytes, header, 0), kHuge);  // the batch's rows
  expect_refused(bytes, "70368744177664 values");
}

TEST_F(TableLengths, AFooterIsNotBelieved) {
  for (const char* name : {"uncompressed.arrow", "lz4.arrow"}) {
    std::string bytes = golden(name);
    const size_t end = bytes.size() - 10;
    const auto length = static_cast<size_t>(number_at<int32_t>(bytes, end));
    const size_t footer = end - length;
    const size_t list = field_place(bytes, footer, 3);
    const size_t block = list + number_at<uint32_t>(bytes, list) + 4;
    const std::string whole = bytes;
    put_number(bytes, block + 16, kHuge);
    expect_refused(bytes, "a message's body of 70368744177664 bytes");

    // The second block is the first once more.
    bytes = whole;
    bytes.replace(block + 24, 24, whole.substr(block, 24));
    put_number(bytes, block + 24 + 16, static_cast<int64_t>(bytes.size() / 2));
    EXPECT_NE(error_of(bytes), "");
    bytes = whole;
    put_number(bytes, end, int32_t{0x7fffffff});
    expect_refused(bytes, "a footer of 2147483647 bytes");
  }
}

TEST_F(TableLengths, ANestedSchemaAndALongListOfParquetAreRefused) {
  std::vector<std::string> schema(100'000, group_element());
  schema.push_back(column_element());
  expect_refused(parquet_of(schema, std::string(1, '\x0c')), "nested deeper than 64 levels");
  expect_refused(parquet_of({group_element(), column_element()}, "\xfc" + varint(0x7fffffff)),
                 "a list of 2147483647 items");
}

// Any number of eight or four bytes may be another one. A process that asks for more than there is
// ends, and this test with it.
TEST_F(TableLengths, AnyNumberMayBeWrong) {
  const auto try_all = [&](const std::string& whole, uint64_t trials) {
    for (uint64_t trial = 0; trial < trials; ++trial) {
      std::string bytes = whole;
      const size_t place = random_bits(3, trial) % (bytes.size() / 4 - 1) * 4;
      const uint64_t way = random_bits(4, trial) % 4;
      if (way == 0) put_number(bytes, place, kHuge);
      if (way == 1) put_number(bytes, place, int64_t{-1});
      if (way == 2) put_number(bytes, place, int32_t{0x7fffffff});
      if (way == 3) put_number(bytes, place, int32_t{1 << 28});
      error_of(bytes);
    }
  };
  const auto try_files = [&] {
    try_all(golden("training.arrow"), 1500);
    try_all(golden("lz4.arrow"), 500);
    try_all(golden("zstd.arrow"), 500);
    try_all(golden("second_version.parquet"), 500);
  };
  if (test::kSanitized) return try_files();  // a sanitizer maps more memory than the limit leaves
  const test::MemoryLimit limit(kMostMemory);
  try_files();
}

}  // namespace
}  // namespace retort::models
