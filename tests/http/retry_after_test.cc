// When a request that was put off comes again.
#include "http/detail/retry_after.h"

#include <gtest/gtest.h>

namespace retort::http::detail {
namespace {

using std::chrono::milliseconds, std::chrono::seconds, std::chrono::system_clock;

std::optional<Duration> asked(const std::string& text, const Headers& more = {},
                              system_clock::time_point now = {}) {
  Headers headers = more;
  headers.push_back({"retry-after", text});
  return retry_after(headers, now);
}

TEST(RetryAfter, ReadsSeconds) {
  EXPECT_EQ(asked("0"), Duration(0));
  EXPECT_EQ(asked("120"), seconds(120));
  EXPECT_GT(asked("99999999999999999999999"), std::chrono::hours(24 * 365));
  EXPECT_EQ(retry_after({}, {}), std::nullopt);
  for (const char* text : {"", "-1", "1.5", "soon", "12 s", "0x10"})
    EXPECT_EQ(asked(text), std::nullopt) << text;
}

TEST(RetryAfter, ReadsDates) {
  const std::string date = "Sun, 06 Nov 1994 08:49:37 GMT";
  const auto then = system_clock::from_time_t(784111777);
  EXPECT_EQ(asked(date, {}, then - seconds(90)), seconds(90));
  EXPECT_EQ(asked(date, {}, then + seconds(90)), Duration(0));
  EXPECT_EQ(asked(date, {{"Date", "Sun, 06 Nov 1994 08:48:37 GMT"}}, then), seconds(60))
      << "the server's own clock";
  EXPECT_GT(asked("Fri, 31 Dec 9999 23:59:59 GMT", {}, then), std::chrono::hours(24 * 365))
      << "never, and not at once";
  EXPECT_EQ(asked(date, {{"Date", "Fri, 31 Dec 9999 23:59:59 GMT"}}), Duration(0));
  EXPECT_EQ(asked(date, {{"Date", "yesterday"}}, then - seconds(5)), seconds(5));
  for (const char* text : {"Sun, 06 Nov 1994 08:49:37", "Sun, 06 Foo 1994 08:49:37 GMT",
                           "Sun Nov  6 08:49:37 1994", "Sun, 06 Nov 1994 08:49:37 GMT+1"})
    EXPECT_EQ(asked(text), std::nullopt) << text;
}

TEST(PauseBefore, DoublesWithJitter) {
  const Patience patience{.first_pause = milliseconds(100), .longest_pause = milliseconds(500)};
  const auto pause = [&](int num_pauses, double jitter) {
    return pause_before(std::nullopt, patience, num_pauses, jitter).count();
  };
  EXPECT_EQ(pause(0, 0.0), 50);
  EXPECT_EQ(pause(0, 1.0), 100);
  EXPECT_EQ(pause(1, 1.0), 200);
  EXPECT_EQ(pause(2, 0.5), 300);
  EXPECT_EQ(pause(3, 1.0), 500);
  EXPECT_EQ(pause(1'000'000, 1.0), 500);
}

TEST(PauseBefore, KeepsWhatIsAsked) {
  const Patience patience{.first_pause = milliseconds(100), .longest_pause = milliseconds(500)};
  EXPECT_EQ(pause_before(seconds(60), patience, 5, 0.0), seconds(60));
  EXPECT_EQ(pause_before(seconds(60), patience, 5, 0.5), milliseconds(60'050));
  EXPECT_EQ(pause_before(Duration(0), patience, 5, 1.0), milliseconds(500)) << "not again at once";
}

}  // namespace
}  // namespace retort::http::detail
