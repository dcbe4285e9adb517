// What an answer may be, and how it may be cut on its way.
#include "http/detail/response_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/support/thrown.h"

namespace retort::http::detail {
namespace {

// Feeds pieces of `size` bytes, then the end of the stream; true once the answer was complete.
bool feed(ResponseReader& reader, std::string_view bytes, size_t size) {
  while (!bytes.empty()) {
    const auto room = reader.room();
    const size_t now = std::min({size, bytes.size(), room.size()});
    std::memcpy(room.data(), bytes.data(), now);
    bytes.remove_prefix(now);
    if (reader.add(now)) return true;
  }
  return reader.add_end();
}

constexpr size_t kSizes[] = {1, 2, 3, 7, 64, 100'000};

TEST(ResponseReader, TakesAnswersHoweverTheyAreCut) {
  const struct {
    std::string bytes;
    int status;
    std::string body;
    bool reusable;
  } cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true},
      {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", true},
      {"HTTP/1.1 204 No Content\r\n\r\n", 204, "", true},
      {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", 200, "hi", false},
      {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", false},
      {"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, "until the end", false},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n"
       "0\r\nTrailer: 1\r\n\r\n",
       200, "abc0123456789", true},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
       "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
       200, "x", true},
      {"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nwhy", 500, "why", true},
  };

  // In pieces of each size.
  for (const auto& c : cases)
    for (const size_t size : kSizes) {
      const Request request;
      ResponseReader reader(request);
      ASSERT_TRUE(feed(reader, c.bytes, size)) << c.bytes;
      EXPECT_EQ(reader.reusable(), c.reusable) << c.bytes;
      const Response response = reader.release();
      EXPECT_EQ(response.status, c.status) << c.bytes;
      EXPECT_EQ(response.body, c.body) << c.bytes << size;
    }
}

TEST(ResponseReader, KeepsHeaders) {
  const Request request;
  ResponseReader reader(request);
  ASSERT_TRUE(feed(reader, "HTTP/1.1 200 OK\r\nX-One: 1\r\nContent-Length: 0\r\n\r\n", 1000));
  const Response response = reader.release();
  const std::string* one = find_header(response.headers, "x-oNE");
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(*one, "1");
  EXPECT_EQ(find_header(response.headers, "X-Two"), nullptr);
}

TEST(ResponseReader, RefusesWhatIsWrong) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const struct {
    std::string bytes;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {"220 mail.example.org ESMTP\r\n\r\n", ErrorCode::kCorrupt, "'220 mail.example.org"},
      {"\x15\x03\x01\x02", ErrorCode::kMismatch, "https://"},
      {"<html>\x01</html>", ErrorCode::kCorrupt, "'<html>\\x01</html>'"},
      {ok + "Content-Len", ErrorCode::kCorrupt, "within its header"},
      {ok + "Content-Length: 17\r\n\r\nabc", ErrorCode::kCorrupt, "after 3 of 17 bytes"},
      {ok + "Content-Length: 17x\r\n\r\nabc", ErrorCode::kCorrupt, "Content-Length"},
      {ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", ErrorCode::kCorrupt, "Content-Len"},
      {ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", ErrorCode::kCorrupt, ""},
      {ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nabc", ErrorCode::kCorrupt, "after 3 bytes"},
      {ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", ErrorCode::kCorrupt, "after 3 byt"},
      {ok + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", ErrorCode::kCorrupt, "rules of HTTP"},
      {ok + "Transfer-Encoding: gzip, chunked\r\n\r\n", ErrorCode::kMismatch, "gzip"},
      {ok + "Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\n", ErrorCode::kMismatch, "'gzip'"},
      {ok + "Content-Encoding: br\r\n\r\n", ErrorCode::kMismatch, "Content-Encoding 'br'"},
      {ok + "Content-Length: 1073741824\r\n\r\n", ErrorCode::kResourceExhausted,
       "1073741824 bytes, above the limit of 1000; turn the knob"},
      {ok + "\r\n" + std::string(1001, 'x'), ErrorCode::kResourceExhausted,
       "longer than the limit of 1000 bytes; turn the knob"},
      {ok + "Transfer-Encoding: chunked\r\n\r\n3E9\r\n" + std::string(1001, 'x'),
       ErrorCode::kResourceExhausted, "longer than the limit of 1000"},
      {ok + "X: " + std::string(200'000, 'x'), ErrorCode::kCorrupt, "more than 64 KiB"},
      {ok + "Content-Type: Text/HTML; charset=x\r\nContent-Length: 7\r\n\r\n<p>no\n!",
       ErrorCode::kMismatch, "'text/html', expected application/json"},
  };

  // In pieces of each size, within a text that a log can take.
  for (const auto& c : cases)
    for (const size_t size : kSizes) {
      Request request{.expected_type = "application/json"};
      request.limits.body_bytes = 1000;
      request.limits.body_advice = "turn the knob";
      ResponseReader reader(request);
      const Error error = test::error_of([&] { feed(reader, c.bytes, size); });
      EXPECT_EQ(error.code(), c.code) << error.message();
      EXPECT_NE(error.message().find(c.part), std::string::npos) << c.part << error.message();
      EXPECT_LT(error.message().size(), 1000u);
    }
}

TEST(ResponseReader, SeesBytesThatFollowTheAnswer) {
  const Request request;
  ResponseReader reader(request);
  test::expect_error(ErrorCode::kCorrupt, "3 bytes follow the end", [&] {
    feed(reader, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabcde", 1000);
  });
}

TEST(ResponseReader, TakesAnEncodingThatWasAskedFor) {
  const Request request{.accept_encoding = "br;q=1, GZIP"};
  ResponseReader reader(request);
  ASSERT_TRUE(feed(
      reader, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", 9));
  EXPECT_EQ(reader.release().body, "\x1f\x8b");
}

TEST(ResponseReader, ReadsTheBeginningOfAnErrorOnly) {
  for (const std::string length : {"Content-Length: 1073741824\r\n", ""}) {
    const Request request;
    ResponseReader reader(request);
    ASSERT_TRUE(
        feed(reader, "HTTP/1.1 500 No\r\n" + length + "\r\n" + std::string(200'000, 'x'), 1000));
    EXPECT_FALSE(reader.reusable());
    EXPECT_EQ(reader.release().body, std::string(kKeptBytes, 'x'));
  }
}

TEST(ResponseReader, HandsTheBodyOn) {
  std::string got;
  const Request request{.on_body = [&](std::string_view bytes) { got += bytes; }};
  ResponseReader reader(request);
  ASSERT_TRUE(feed(reader,
                   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n"
                   "0\r\n\r\n",
                   1));
  EXPECT_EQ(got, "abcd");
  EXPECT_EQ(reader.release().body, "");
}

TEST(ResponseReader, DoesNotShowTheSecret) {
  const Request request{.expected_type = "application/json"};
  ResponseReader reader(request, "sk-secret");
  const std::string body = std::string(195, 'x') + "sk-secret";
  const Error error = test::error_of(
      [&] { feed(reader, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + body, 1000); });
  EXPECT_EQ(error.message().find("sk-"), std::string::npos) << error.message();
  EXPECT_NE(error.message().find("xxx***"), std::string::npos) << error.message();
}

TEST(ResponseReader, EndsAStreamOfInterimAnswers) {
  const Request request;
  ResponseReader reader(request);
  std::string bytes;
  for (int i = 0; i < 100; ++i)
    bytes += "HTTP/1.1 102 Processing\r\n\r\n";
  test::expect_error(ErrorCode::kCorrupt, "1xx", [&] { feed(reader, bytes, 50); });
}

}  // namespace
}  // namespace retort::http::detail
