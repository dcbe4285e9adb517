// The first lines of requests.
#include "http/detail/request_head.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort::http::detail {
namespace {

TEST(RequestHead, SaysWhatIsNeeded) {
  Request request{.url = parse_url("http://[::1]:80/a?b=c"), .expected_type = "text/event-stream"};
  request.body = {piece_of("12345"), piece_of("67")};
  request.headers = {{"X-Request", "7"}, {"user-agent", "other"}};
  EXPECT_EQ(request_head(request, {"Authorization", "Bearer k"}),
            "POST /a?b=c HTTP/1.1\r\nHost: [::1]:80\r\nAccept: text/event-stream\r\n"
            "Accept-Encoding: identity\r\nAuthorization: Bearer k\r\n"
            "Content-Type: application/json\r\nContent-Length: 7\r\nX-Request: 7\r\n"
            "user-agent: other\r\n\r\n");
}

TEST(RequestHead, WithoutABody) {
  const Url url = parse_url("http://a");
  EXPECT_EQ(request_head({.method = Method::kGet, .url = url}, {}),
            "GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: retort\r\nAccept: */*\r\n"
            "Accept-Encoding: identity\r\n\r\n");
  EXPECT_NE(request_head({.url = url}, {}).find("Content-Length: 0\r\n"), std::string::npos);
}

TEST(RequestHead, RefusesHeadersThatWouldBreakIt) {
  const Url url = parse_url("http://a");
  const struct {
    Header header;
    const char* part;
  } cases[] = {
      {{"", "x"}, "named nothing"},          {{"A B", "x"}, "named 'A B'"},
      {{"A:", "x"}, "named 'A:'"},           {{"A", "x\r\nB: y"}, "header A has a line break"},
      {{"A", "x\n"}, "A has a line break"},  {{"A", std::string(1, '\0')}, "control character"},
      {{"HOST", "b"}, "header Host itself"}, {{"content-length", "1"}, "Content-Length itself"},
  };
  for (const auto& c : cases)
    test::expect_refused(c.part, [&] { request_head({.url = url, .headers = {c.header}}, {}); });

  const Error error = test::error_of([&] {
    request_head({.url = url}, {"Authorization", "sk-1\n"});
  });
  EXPECT_EQ(error.message().find("sk-1"), std::string::npos) << error.message();
  test::expect_refused("white space", [] { request_head({.url = {.target = "/a b"}}, {}); });
}

}  // namespace
}  // namespace retort::http::detail
