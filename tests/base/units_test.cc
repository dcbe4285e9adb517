#include "base/units.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort {
namespace {
using namespace std::chrono_literals;

TEST(Duration, Parses) {
  EXPECT_EQ(parse_duration("250ms"), 250ms);
  EXPECT_EQ(parse_duration("120s"), 120s);
  EXPECT_EQ(parse_duration("5m"), 5min);
  EXPECT_EQ(parse_duration("2h"), 2h);
  EXPECT_EQ(parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(parse_duration("3 s"), 3s);
  EXPECT_EQ(parse_duration("0s"), 0s);
}

TEST(Duration, RefusesWhatIsNone) {
  for (const char* text : {"", "s", "12", "12 parsecs", "-3s", "nan s", "inf s", "1s2", "3S",
                           "1e400s", "1e30s", "1000001h"}) {
    const std::string message = test::message_of([&] { parse_duration(text); });
    EXPECT_NE(message.find(std::string("'") + text + "'"), std::string::npos)
        << text << ": " << message;
    EXPECT_NE(message.find("120s"), std::string::npos) << "no example: " << message;
  }
}

TEST(Duration, FormatsTheShortestExactText) {
  EXPECT_EQ(format_duration(0ms), "0ms");
  EXPECT_EQ(format_duration(250ms), "250ms");
  EXPECT_EQ(format_duration(1500ms), "1500ms");
  EXPECT_EQ(format_duration(90s), "90s");
  EXPECT_EQ(format_duration(120s), "2m");
  EXPECT_EQ(format_duration(7200s), "2h");
}

TEST(ShortDuration, ParsesAndFormats) {
  EXPECT_EQ(parse_short_duration("0us"), 0us);
  EXPECT_EQ(parse_short_duration("20us"), 20us);
  EXPECT_EQ(parse_short_duration("1.5ms"), 1500us);
  EXPECT_EQ(parse_short_duration("1s"), 1s);
  for (const auto duration : {0us, 1us, 999us, 1000us, 1500us, 1000000us})
    EXPECT_EQ(parse_short_duration(format_short_duration(duration)), duration);
  EXPECT_EQ(format_short_duration(20us), "20us");
  EXPECT_EQ(format_short_duration(2000us), "2ms");

  for (const char* text : {"", "20", "20 u", "-1us", "nan us", "1m", "2s", "1000001us"}) {
    const std::string message = test::message_of([&] { parse_short_duration(text); });
    EXPECT_NE(message.find("20us"), std::string::npos) << text << ": " << message;
  }
}

TEST(ByteSize, Parses) {
  EXPECT_EQ(parse_byte_size("1000000").bytes, 1000000u);
  EXPECT_EQ(parse_byte_size("17B").bytes, 17u);
  EXPECT_EQ(parse_byte_size("512KiB").bytes, 512u << 10);
  EXPECT_EQ(parse_byte_size("64MiB").bytes, 64u << 20);
  EXPECT_EQ(parse_byte_size("2GiB").bytes, uint64_t{2} << 30);
  EXPECT_EQ(parse_byte_size("1.5GiB").bytes, uint64_t{3} << 29);
  EXPECT_EQ(parse_byte_size("3TiB").bytes, uint64_t{3} << 40);
  EXPECT_EQ(parse_byte_size("2GB").bytes, 2'000'000'000u);
  EXPECT_EQ(parse_byte_size("2 KB").bytes, 2000u);
}

TEST(ByteSize, RefusesWhatIsNone) {
  for (const char* text : {"", "GiB", "-1GiB", "1 gib", "2Gi", "12parsecs", "nan", "1e400", "1e20",
                           "1e30TiB", "8193TiB"})
    EXPECT_EQ(test::code_of([&] { parse_byte_size(text); }), ErrorCode::kInvalidArgument) << text;
}

TEST(ByteSize, FormatsExactlyAndReadsBack) {
  EXPECT_EQ(format_byte_size({0}), "0B");
  EXPECT_EQ(format_byte_size({1023}), "1023B");
  EXPECT_EQ(format_byte_size({uint64_t{2} << 30}), "2GiB");
  EXPECT_EQ(format_byte_size({uint64_t{2} << 40}), "2TiB");
  EXPECT_EQ(format_byte_size({(uint64_t{1} << 20) + 1024}), "1025KiB");
  for (uint64_t bytes :
       {uint64_t{1}, uint64_t{1000}, uint64_t{1} << 10, uint64_t{3} << 21, (uint64_t{1} << 50) + 1})
    EXPECT_EQ(parse_byte_size(format_byte_size({bytes})).bytes, bytes);
}

TEST(Duration, TheLongestOneIsCountedInNanoseconds) {
  const Duration longest = parse_duration("1000000h");
  EXPECT_GT(std::chrono::steady_clock::now() + longest, std::chrono::steady_clock::now());
  EXPECT_EQ(parse_byte_size("8192TiB").bytes, uint64_t{1} << 53);
}

TEST(Duration, ReadsBack) {
  for (const auto duration : {1ms, 999ms, 1000ms, 61000ms, 3600000ms, 3600001ms})
    EXPECT_EQ(parse_duration(format_duration(duration)), duration);
}

}  // namespace
}  // namespace retort
