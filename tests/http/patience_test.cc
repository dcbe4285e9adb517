// Servers that put requests off.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "http/client.h"
#include "tests/http/requests.h"

namespace retort::http {
namespace {

using std::chrono::seconds, std::chrono::milliseconds;
using test::Received, test::ask, test::failure, test::post_to, test::reply, test::soon;

// Puts the first `times` requests off, then answers.
test::ScriptedServer::Script busy(int times, int status, const std::string& more_lines,
                                  std::atomic<int>& seen) {
  return test::answer_all([=, &seen](const Received&) {
    return seen++ < times ? reply(status, "busy", more_lines) : reply(200, "{}");
  });
}

Request patient(const std::string& url, Duration total = std::chrono::minutes(1)) {
  Request request = post_to(url);
  request.patience = {.total = total, .first_pause = milliseconds(1)};
  return request;
}

TEST(Patience, ComesAgain) {
  for (const int status : {429, 503})
    for (const std::string lines :
         {"", "Retry-After: 0\r\n", "Retry-After: nonsense\r\n",
          "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n", "Connection: close\r\n"}) {
      std::atomic<int> seen{0};
      const test::ScriptedServer server(busy(3, status, lines, seen));
      Client client;
      EXPECT_EQ(ask(client, patient(server.url())).status, 200) << status << lines;
      EXPECT_EQ(seen, 4);
      EXPECT_EQ(client.counters().requests, 1u);
      EXPECT_EQ(client.counters().attempts, 4u);
      EXPECT_EQ(client.counters().retries, 3u);
      EXPECT_EQ(client.counters().pauses, 3u);
    }
}

// A pause is as long as was asked, and does not count as time of an attempt.
TEST(Patience, WaitsAsLongAsIsAsked) {
  std::atomic<int> seen{0};
  const test::ScriptedServer server(busy(1, 429, "Retry-After: 4\r\n", seen));
  Client client;
  Request request = patient(server.url());
  request.limits.attempt = milliseconds(3500);
  const auto start = Deadline::Clock::now();
  EXPECT_EQ(ask(client, std::move(request)).status, 200);
  EXPECT_GE(Deadline::Clock::now() - start, seconds(4));
}

TEST(Patience, EndsAtOnceWhereMoreIsAsked) {
  std::atomic<int> seen{0};
  const test::ScriptedServer server(busy(99, 429, "Retry-After: 3600\r\n", seen));
  Client client;
  for (const Duration total : {Duration(0), Duration(seconds(60))}) {
    seen = 0;
    const Error error = failure(client, patient(server.url(), total));
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
    EXPECT_EQ(test::context_of(error, "status"), "429");
    EXPECT_EQ(seen, 1);
  }

  // Neither is a pause begun that the deadline would end.
  auto answer = client.send(patient(server.url(), std::chrono::hours(10)), soon());
  EXPECT_EQ(test::code_of([&] { answer.get(); }), ErrorCode::kUnavailable);
}

TEST(Patience, IsSpent) {
  std::atomic<int> seen{0};
  const test::ScriptedServer server(busy(1000, 503, "", seen));
  Client client;
  const Error error = failure(client, patient(server.url(), milliseconds(20)));
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("pauses of"), std::string::npos) << error.what();
  EXPECT_GE(seen, 2);

  Request request = patient(server.url(), milliseconds(20));
  request.any_status = true;
  EXPECT_EQ(ask(client, std::move(request)).status, 503) << "an answer, once patience is spent";
}

TEST(Patience, OtherStatusesDoNotWait) {
  for (const int status : {500, 502, 400}) {
    std::atomic<int> seen{0};
    const test::ScriptedServer server(busy(1, status, "Retry-After: 0\r\n", seen));
    Client client;
    Request request = patient(server.url());
    request.idempotent = true;
    failure(client, std::move(request));
    EXPECT_EQ(seen, 1) << status;
  }
}

TEST(Patience, OutlastsAStorm) {
  std::mutex mutex;
  std::map<std::string, int> seen;
  const test::ScriptedServer server(test::answer_all([&](const Received& request) {
    const std::lock_guard lock(mutex);
    return ++seen[request.body] <= 3 ? reply(429, "busy", "Retry-After: 0\r\n")
                                     : reply(200, request.body);
  }));
  Client client({.max_inflight = 4});
  std::vector<Future<Response>> answers;
  for (int i = 0; i < 64; ++i) {
    Request request = patient(server.url());
    request.body = {piece_of(std::to_string(i))};
    answers.push_back(client.send(std::move(request), soon()));
  }
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(answers[static_cast<size_t>(i)].get().body, std::to_string(i));
  EXPECT_EQ(client.counters().pauses, 3u * 64);
  EXPECT_LE(server.num_connections(), 4);
}

TEST(Patience, LeavesItsPlaceToOthers) {
  test::Count put_off;
  const test::ScriptedServer server(test::answer_all([&](const Received& request) {
    if (request.body != "first") return reply(200, "{}");
    put_off.raise();
    return reply(429, "busy", "Retry-After: 60\r\n");
  }));
  Client client({.max_inflight = 1});
  Request request = patient(server.url(), std::chrono::hours(1));
  request.body = {piece_of("first")};
  auto first = client.send(std::move(request), soon());
  ASSERT_TRUE(put_off.reaches(1));
  EXPECT_EQ(ask(client, post_to(server.url())).status, 200);
  EXPECT_FALSE(first.ready());
  first.cancel();
  EXPECT_EQ(test::code_of([&] { first.get(); }), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace retort::http
