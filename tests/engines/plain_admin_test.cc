#include "engines/wire/plain_admin.h"

#include <gtest/gtest.h>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "engines/make_engine.h"
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

TEST(PlainAdmin, KeepsKeysOffTheNetwork) {
  const auto make = [](const std::string& url, const std::string& key) {
    make_engine({}, url, key);
  };
  test::expect_refused("api_key_env", [&] { make("http://10.0.0.1:8000", "secret"); });
  make("http://10.0.0.1:8000", "");
  make("https://10.0.0.1:8000", "secret");
  make("http://127.0.0.1:8000", "secret");
  const Error error = test::error_of([&] { make("http://10.0.0.1:8000", "secret"); });
  EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos);
}

TEST(PlainAdmin, GuardsAdministrativeDoors) {
  ExternalOptions options;
  const auto load = [&](const std::string& url) {
    make_engine(options, url, "")
        ->load_weights("/nowhere", Deadline::after(std::chrono::seconds(60)))
        .get();
  };
  test::expect_error(ErrorCode::kUnauthenticated, "allow_plain_admin",
                     [&] { load("http://10.0.0.1:8000"); });
  // These addresses are allowed, so the next thing that is refused is the folder.
  test::expect_refused("is no folder", [&] { load("http://localhost:8000"); });
  test::expect_refused("is no folder", [&] { load("https://10.0.0.1:8000"); });
  options.allow_plain_admin = true;
  test::expect_refused("is no folder", [&] { load("http://10.0.0.1:8000"); });

  // A recipe that means to load weights is refused at once.
  options.allow_plain_admin = false;
  options.weights.via = WeightRoute::kFolder;
  test::expect_error(ErrorCode::kUnauthenticated, "allow_plain_admin",
                     [&] { make_engine(options, "http://10.0.0.1:8000", ""); });
  options.weights.via = WeightRoute::kGguf;
  test::expect_refused("weights.via", [&] { make_engine(options, "http://localhost:1", ""); });
}

}  // namespace
}  // namespace retort::engines
