// A page for programs that look now and then.
#include "http/page_server.h"

#include <atomic>

#include "tests/http/requests.h"

namespace retort::http {
namespace {

using test::soon;

std::string url_of(const PageServer& server, const std::string& path) {
  return "http://127.0.0.1:" + std::to_string(server.port()) + path;
}
Request get(const std::string& url) { return {.method = Method::kGet, .url = parse_url(url)}; }

TEST(PageServer, AnswersEachLookAnew) {
  std::atomic<int> looks{0};
  const PageServer server({.page = [&] { return "look " + std::to_string(++looks) + "\n"; }});
  Client client;
  EXPECT_EQ(test::ask(client, get(url_of(server, "/metrics"))).body, "look 1\n");
  const Response second = test::ask(client, get(url_of(server, "/metrics")));
  EXPECT_EQ(second.body, "look 2\n");
  EXPECT_NE(find_header(second.headers, "content-type")->find("version=0.0.4"), std::string::npos);
  EXPECT_EQ(client.counters().connections, 1u) << "it is kept";
}

TEST(PageServer, HasOnePageAndOneMethod) {
  const PageServer server({.page = [] { return "page"; }});
  Client client;
  const auto status_of = [&](Request request) {
    request.any_status = true;
    return test::ask(client, std::move(request)).status;
  };
  EXPECT_EQ(status_of(get(url_of(server, "/"))), 404);
  EXPECT_EQ(status_of(get(url_of(server, "/metrics?x=1"))), 404);
  Request put{.method = Method::kPut, .url = parse_url(url_of(server, "/metrics"))};
  EXPECT_EQ(status_of(put), 405);
}

// Clients that say nothing take no place from others for ever.
TEST(PageServer, ServesWhoWaitsOnceOthersAreSilent) {
  const PageServer server({.page = [] { return "page"; }});
  std::vector<std::unique_ptr<Client>> others;
  for (int i = 0; i < PageServer::kMaxConnections + 2; ++i) {
    others.push_back(std::make_unique<Client>(ClientOptions{.keep_idle = std::chrono::hours(1)}));
    EXPECT_EQ(test::ask(*others.back(), get(url_of(server, "/metrics"))).body, "page");
  }
}

TEST(PageServer, PortThatIsTakenIsSaid) {
  const PageServer server({.page = [] { return "page"; }});
  test::expect_error(ErrorCode::kUnavailable, "port " + std::to_string(server.port()),
                     [&] { PageServer second({.port = server.port(), .page = {}}); });
  test::expect_error(ErrorCode::kUnavailable, "no.such.host.invalid",
                     [] { PageServer nowhere({.address = "no.such.host.invalid", .page = {}}); });
}

}  // namespace
}  // namespace retort::http
