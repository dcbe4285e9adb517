#include "base/printable.h"

#include <gtest/gtest.h>

namespace retort::test {
namespace {

TEST(Printable, WhatActsOnATerminalIsAnEscape) {
  EXPECT_EQ(printable("qwen3-8b, µ 漢 🙂"), "qwen3-8b, µ 漢 🙂");
  EXPECT_EQ(printable("a\x1b]0;title\ab\r\nI forged\t\x7f"),
            "a\\x1b]0;title\\x07b\\r\\nI forged\\t\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J")
      << "U+009B, CSI in one character";
  EXPECT_EQ(printable("\xff\xc3("), "\\xff\\xc3(");
  EXPECT_EQ(printable("two\n\tlines\r", LineEnds::kKept), "two\n\tlines\\r");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

// For whoever shows bytes of no known encoding, and decides itself which of them are escapes.
TEST(Printable, AByteHasAnEscape) {
  std::string text = "bytes ";
  for (const char byte : {'\0', '\n', '\r', '\t', 'A', '\x7f', '\xff'})
    append_escape(text, byte);
  EXPECT_EQ(text, "bytes \\x00\\n\\r\\t\\x41\\x7f\\xff");
}

TEST(Printable, KnowsWhatIsUtf8) {
  for (const char* good : {"", "a", "\xc2\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(good)) << printable(good);
  // A lone byte, overlong, cut, a surrogate, above the last one.
  for (const char* bad : {"\x80", "\xff", "\xc1\xbf", "\xe0\x9f\xbf", "\xc3", "\xe2\x82",
                          "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80"})
    EXPECT_FALSE(is_utf8(bad)) << printable(bad);
  EXPECT_EQ(utf8_prefix("a\xc3\xa9\xe6\xb0"), 3u) << "behind it a character is cut";
  EXPECT_EQ(utf8_prefix("\xff"
                        "a"),
            0u);
}

}  // namespace
}  // namespace retort::test
