// What Prometheus sees of a run while it goes on.
#include <regex>

#include "http/client.h"
#include "tests/recipes/run_support/run_support.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;

TEST(MetricsPort, ShowsTheRunWhileItGoesOn) {
  TemporaryFolder folder;
  const fs::path recipe = write_recipe(folder / "r", {.teacher = "teacher", .steps = 1'000'000});
  Command launch({retort_binary(), "launch", recipe.string(), "launch.metrics_port=0"});
  std::smatch found;
  std::string said;
  const std::regex line(R"(metrics: (http://127\.0\.0\.1:\d+/metrics)\n)");
  ASSERT_TRUE(wait_until(
      [&] {
        said = launch.output();
        return std::regex_search(said, found, line);
      },
      60s));

  http::Client client;
  const auto page = [&] {
    http::Request request{.method = http::Method::kGet, .url = http::parse_url(found[1])};
    return client.send(request, Deadline::after(30s)).get().body;
  };
  const auto has = [&](const std::string& part) {
    return wait_until([&] { return page().find(part) != std::string::npos; }, 60s);
  };
  EXPECT_TRUE(has("retort_process_state{run=")) << page();
  EXPECT_TRUE(has(R"(role="teacher",rank="0")")) << page();
  EXPECT_TRUE(has("retort_logged_loss{run=")) << page();
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(60s).exit_code, 4);
}

}  // namespace
}  // namespace retort::test
