#include "engines/wire/base64.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

std::string bytes_of(const std::string& text, size_t piece = 1000) {
  Base64Bytes reader;
  for (size_t at = 0; at < text.size(); at += piece)
    reader.add(std::string_view(text).substr(at, piece));
  const std::vector<uint8_t> bytes = reader.take();
  return {bytes.begin(), bytes.end()};
}

// RFC 4648, 10.
TEST(Base64, ReadsTheVectorsOfTheStandard) {
  EXPECT_EQ(bytes_of(""), "");
  EXPECT_EQ(bytes_of("Zg=="), "f");
  EXPECT_EQ(bytes_of("Zm8="), "fo");
  EXPECT_EQ(bytes_of("Zm9v"), "foo");
  EXPECT_EQ(bytes_of("Zm9vYmFy"), "foobar");
  EXPECT_EQ(bytes_of("+/+/"), "\xfb\xff\xbf");
  for (const size_t piece : {1, 2, 3, 5})
    EXPECT_EQ(bytes_of("Zm9vYmE=", piece), "fooba") << piece;
}

TEST(Base64, RefusesWhatIsNone) {
  for (const std::string text : {"Z", "Zg", "Zg=", "Zm9", "Zm9v=", "Z===", "====", "Zh==", "Zm9=",
                                 "Zg==Zg==", "Zm 9v", "Zm-_", "Zm9v\n"}) {
    SCOPED_TRACE(text);
    test::expect_error(ErrorCode::kCorrupt, "no base64", [&] { bytes_of(text); });
  }
}

}  // namespace
}  // namespace retort::engines
