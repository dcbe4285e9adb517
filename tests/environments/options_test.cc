// The block of a role that is an environment.
#include "environments/options.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::environments {
namespace {
using test::expect_refused;

EnvironmentOptions program() {
  EnvironmentOptions options;
  options.command = {"env"};
  return options;
}
EnvironmentOptions service() {
  EnvironmentOptions options;
  options.url = "https://env.example/step";
  return options;
}

class EnvironmentOptionsTest : public test::FolderTest {};

TEST_F(EnvironmentOptionsTest, TakesAProgramOrAService) {
  program().validate();
  service().validate();
  expect_refused("command: is missing, and so is url", [] { EnvironmentOptions().validate(); });
  const auto refused = [](EnvironmentOptions options, auto change, const std::string& part) {
    change(options);
    expect_refused(part, [&] { options.validate(); });
  };
  refused(program(), [](auto& o) { o.url = "http://a"; }, "url: command is given too");
  refused(program(), [](auto& o) { o.command[0] = ""; }, "command: its first word is empty");
  refused(program(), [](auto& o) { o.api_key_env = "K"; }, "api_key_env: has no effect");
  refused(program(), [](auto& o) { o.api_key_file = "k"; }, "api_key_file: has no effect");
  refused(program(), [](auto& o) { o.ca_file = "c"; }, "ca_file: has no effect");
  refused(program(), [](auto& o) { o.episodes = 0; }, "episodes: 0 is not in [1, 100000]");
  refused(program(), [](auto& o) { o.start_timeout = Duration(0); }, "start_timeout: must be");
  refused(service(), [](auto& o) { o.api_key_env = o.api_key_file = "k"; },
          "api_key_file: api_key_env is given too");
  refused(service(), [](auto& o) { o.url = "env.example"; }, "env.example");
}

TEST_F(EnvironmentOptionsTest, FindsTheKey) {
  EnvironmentOptions options = service();
  EXPECT_EQ(read_api_key(options), "");
  options.api_key_env = "RETORT_TEST_ENVIRONMENT_KEY";
  ::unsetenv("RETORT_TEST_ENVIRONMENT_KEY");
  expect_refused("RETORT_TEST_ENVIRONMENT_KEY is not set", [&] { read_api_key(options); });
  ::setenv("RETORT_TEST_ENVIRONMENT_KEY", "sesame", 1);
  EXPECT_EQ(read_api_key(options), "sesame");
  ::unsetenv("RETORT_TEST_ENVIRONMENT_KEY");
  options.api_key_env.clear();

  // A file of this user's alone.
  options.api_key_file = folder_ / "key";
  expect_refused("key", [&] { read_api_key(options); });
  put(folder_ / "key", "sesame\n");
  std::filesystem::permissions(folder_ / "key", std::filesystem::perms::owner_read);
  EXPECT_EQ(read_api_key(options), "sesame");
}

}  // namespace
}  // namespace retort::environments
