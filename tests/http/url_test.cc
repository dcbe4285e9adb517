// Addresses of services. What the client does on a connection: tests/rewards/http_test.cc.
#include "http/url.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort::http {
namespace {

TEST(ParseUrl, TakesAnAddressApart) {
  const struct {
    const char* text;
    Url expected;
  } cases[] = {
      {"http://localhost", {"localhost", "80", "/", "localhost"}},
      {"http://localhost:8000/score", {"localhost", "8000", "/score", "localhost:8000"}},
      {"http://a.b/c/d?x=1&y=2", {"a.b", "80", "/c/d?x=1&y=2", "a.b"}},
      {"http://[::1]:80?x=1", {"::1", "80", "/?x=1", "[::1]:80"}},
      {"http://[fe80::2]", {"fe80::2", "80", "/", "[fe80::2]"}},
  };
  for (const auto& c : cases) {
    const Url url = parse_url(c.text);
    EXPECT_EQ(url.host, c.expected.host) << c.text;
    EXPECT_EQ(url.port, c.expected.port) << c.text;
    EXPECT_EQ(url.target, c.expected.target) << c.text;
    EXPECT_EQ(url.host_header, c.expected.host_header) << c.text;
  }
}

TEST(ParseUrl, RefusesWhatIsNoHttpAddress) {
  for (const char* text : {"", "localhost:80", "https://a/b", "http://", "http:///x", "http://a:b/",
                           "http://a:0/", "http://a:70000/", "http://[::1/", "http://[::1]80/",
                           "http://me:secret@a/", "http://a/x y", "http://a/#part"}) {
    const std::string message = test::message_of([&] { parse_url(text); });
    EXPECT_EQ(message.find("url '" + std::string(text) + "': "), 0u) << message;
  }
}

}  // namespace
}  // namespace retort::http
