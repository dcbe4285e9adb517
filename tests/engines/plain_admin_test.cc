#include "engines/plain_admin.h"

#include <gtest/gtest.h>

#include "engines/options.h"
#include "tests/support/thrown.h"

namespace retort::engines {
namespace {

TEST(PlainAdmin, KnowsThisHost) {
  for (const char* host : {"localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.8.9.1",
                           "[::1]", "[::ffff:127.0.0.1]"})
    EXPECT_TRUE(is_loopback(http::parse_url("http://" + std::string(host) + ":80"))) << host;
  for (const char* host : {"localhost.example", "10.0.0.1", "128.0.0.1", "0.0.0.0", "[::]", "[::2]",
                           "[::ffff:10.0.0.1]", "127.example", "gpu7"})
    EXPECT_FALSE(is_loopback(http::parse_url("http://" + std::string(host) + ":80"))) << host;
}

TEST(PlainAdmin, GuardsAdministrativeDoors) {
  ExternalOptions options;
  const auto use = [&](const std::string& url) {
    refuse_plain_admin(http::parse_url(url), options.allow_plain_admin, "loading weights");
  };
  test::expect_error(ErrorCode::kUnauthenticated, "allow_plain_admin",
                     [&] { use("http://10.0.0.1:8000"); });
  EXPECT_NO_THROW(use("http://localhost:8000"));
  EXPECT_NO_THROW(use("https://10.0.0.1:8000"));
  options.allow_plain_admin = true;
  EXPECT_NO_THROW(use("http://10.0.0.1:8000"));
}

}  // namespace
}  // namespace retort::engines
