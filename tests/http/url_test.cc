// Addresses of services.
#include "http/url.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort::http {
namespace {

TEST(ParseUrl, TakesAnAddressApart) {
  const struct {
    const char* text;
    Url expected;
    const char* origin;
  } cases[] = {
      {"http://localhost", {"localhost", "80", "/", "localhost"}, "http://localhost:80"},
      {"http://localhost:8000/score",
       {"localhost", "8000", "/score", "localhost:8000"},
       "http://localhost:8000"},
      {"http://a.b/c/d?x=1&y=2", {"a.b", "80", "/c/d?x=1&y=2", "a.b"}, "http://a.b:80"},
      {"http://[::1]:80?x=1", {"::1", "80", "/?x=1", "[::1]:80"}, "http://[::1]:80"},
      {"http://[fe80::2]", {"fe80::2", "80", "/", "[fe80::2]"}, "http://[fe80::2]:80"},
      {"https://a.b/c", {"a.b", "443", "/c", "a.b", true}, "https://a.b:443"},
      {"https://a.b:80", {"a.b", "80", "/", "a.b:80", true}, "https://a.b:80"},
  };
  for (const auto& c : cases) {
    const Url url = parse_url(c.text);
    EXPECT_EQ(url.host, c.expected.host) << c.text;
    EXPECT_EQ(url.port, c.expected.port) << c.text;
    EXPECT_EQ(url.target, c.expected.target) << c.text;
    EXPECT_EQ(url.host_header, c.expected.host_header) << c.text;
    EXPECT_EQ(url.tls, c.expected.tls) << c.text;
    EXPECT_EQ(url.origin(), c.origin) << c.text;
  }
}

TEST(ParseUrl, RefusesWhatIsNoHttpAddress) {
  for (const char* text :
       {"", "localhost:80", "ftp://a/b", "http://", "https://", "http:///x", "http://a:b/",
        "http://a:0/", "http://a:70000/", "http://[::1/", "http://[::1]80/", "http://a/x y",
        "http://a/#part", "https://[fe80::1%eth0]/"}) {
    const std::string message = test::message_of([&] { parse_url(text); });
    EXPECT_EQ(message.find("url '" + std::string(text) + "': "), 0u) << message;
  }
}

TEST(ParseUrl, RefusesLongHosts) {
  const std::string host(254, 'a');
  EXPECT_NE(test::message_of([&] { parse_url("https://" + host); }).find("the host is no name"),
            std::string::npos);
}

TEST(ParseUrl, ShowsNoSecrets) {
  for (const char* text : {"http://me:secret@a/b", "http://secret@a", "https://a:0/b?key=secret",
                           "me:secret@a", "http://me:secret@a@b/c@d"}) {
    const std::string message = test::message_of([&] { parse_url(text); });
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
  }
  EXPECT_EQ(parse_url("https://a:1/b?key=secret").shown(), "https://a:1/b?...");
  EXPECT_EQ(parse_url("http://[::1]/b").shown(), "http://[::1]/b");
}

TEST(Url, NamesWhatLiesBelow) {
  EXPECT_EQ(parse_url("http://a:1").below("/v1/models").target, "/v1/models");
  EXPECT_EQ(parse_url("http://a:1/base/?x=1").below("/v1/models").target, "/base/v1/models");
  EXPECT_EQ(parse_url("http://a:1/base").below("").target, "/base");
  EXPECT_EQ(parse_url("http://a:1").below("").target, "/");
  EXPECT_EQ(parse_url("https://a:1/b").below("/c").origin(), "https://a:1");
}

}  // namespace
}  // namespace retort::http
