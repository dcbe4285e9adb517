// What a server should not answer, and how long it may take. What the bytes of an answer may be:
// response_reader_test.cc.
#include <gtest/gtest.h>

#include <thread>

#include "http/client.h"
#include "tests/http/requests.h"

namespace retort::http {
namespace {

using std::chrono::milliseconds;
using test::Peer, test::ask, test::context_of, test::failure, test::post_to, test::reply;

// A server that answers a path with these bytes, once, and closes.
test::ScriptedServer::Script says(const std::string& bytes) {
  return [bytes](Peer& peer) {
    peer.read();
    peer.write(bytes);
  };
}

TEST(Refusal, NamesWhatIsWrong) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const struct {
    std::string bytes;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {"SSH-2.0-OpenSSH\r\n", ErrorCode::kCorrupt, "no HTTP/1.1"},
      {"HTTP/1.1 2", ErrorCode::kCorrupt, "within its header"},
      {ok + "Content-Length: 17\r\n\r\n{\"a\":", ErrorCode::kCorrupt, "after 5 of 17 bytes"},
      {ok + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", ErrorCode::kMismatch, "gzip"},
      {ok + "Content-Length: 1073741824\r\n\r\n", ErrorCode::kResourceExhausted, "1073741824"},
      {ok + "Content-Length: 1\r\n\r\nabc", ErrorCode::kCorrupt, "2 bytes follow"},
      {ok + "Content-Type: text/html\r\nContent-Length: 9\r\n\r\n<p>Log in", ErrorCode::kMismatch,
       "'<p>Log in'"},
      {"HTTP/1.1 307 No\r\nLocation: http://b/?k=v\r\nContent-Length: 0\r\n\r\n",
       ErrorCode::kInvalidArgument, "redirected to 'http://b/?...'"},
  };

  // The error says what is wrong, and where, without the query.
  for (const auto& c : cases) {
    const test::ScriptedServer server(says(c.bytes));
    Client client;
    Request request = post_to(server.url("/path?key=secret"));
    request.expected_type = "application/json";
    const Error error = failure(client, std::move(request));
    EXPECT_EQ(error.code(), c.code) << c.bytes << error.what();
    EXPECT_NE(error.message().find(c.part), std::string::npos) << error.what();
    EXPECT_EQ(context_of(error, "url"), server.url("/path?..."));
    EXPECT_EQ(context_of(error, "request"), "POST");
    EXPECT_EQ(client.counters().attempts, 1u) << c.bytes;
  }
}

TEST(Refusal, MapsStatuses) {
  const struct {
    int status;
    ErrorCode code;
  } cases[] = {{400, ErrorCode::kMismatch},        {401, ErrorCode::kUnauthenticated},
               {403, ErrorCode::kUnauthenticated}, {404, ErrorCode::kMismatch},
               {408, ErrorCode::kUnavailable},     {429, ErrorCode::kUnavailable},
               {500, ErrorCode::kUnavailable},     {502, ErrorCode::kUnavailable},
               {503, ErrorCode::kUnavailable},     {600, ErrorCode::kUnavailable}};
  for (const auto& c : cases) {
    const test::ScriptedServer server(says(reply(c.status, "{\"error\":\n\"why\"}")));
    Client client;
    const Error error = failure(client, post_to(server.url()));
    EXPECT_EQ(error.code(), c.code) << error.what();
    EXPECT_EQ(context_of(error, "status"), std::to_string(c.status));
    EXPECT_NE(error.message().find("expected 2xx: '{\"error\":\\n\"why\"}'"), std::string::npos)
        << error.what();
  }
}

TEST(Refusal, SaysWhatWasAskedWhereNothingIs) {
  const test::ScriptedServer server(says(reply(404, "")));
  Client client;
  const Error error = failure(client, post_to(server.url("/path?k=v")));
  EXPECT_NE(error.message().find("there is nothing for POST at " + server.url("/path?...") +
                                 "; check the path, which this server may not serve"),
            std::string::npos)
      << error.what();
}

TEST(Refusal, StatusesMayBeAnswers) {
  for (const int status : {400, 404, 500, 503}) {
    const test::ScriptedServer server(says(reply(status, "why")));
    Client client;
    Request request = post_to(server.url());
    request.any_status = true;
    const Response response = ask(client, std::move(request));
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(response.body, "why");
  }
  const test::ScriptedServer server(says(reply(302, "", "Location: /there\r\n")));
  Client client;
  Request request = post_to(server.url());
  request.any_status = true;
  EXPECT_EQ(failure(client, std::move(request)).code(), ErrorCode::kInvalidArgument);
}

TEST(Refusal, NeverShowsTheKey) {
  const std::string key = "sk-0123456789";
  for (const std::string& answer :
       {reply(401, std::string(190, 'x') + key), reply(302, "", "Location: /?" + key + "\r\n"),
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + key, key + "\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: " + key + "\r\n\r\n"}) {
    const test::ScriptedServer server(says(answer));
    Client client({.api_key = key});
    Request request = post_to(server.url("/" + key + "?" + key));
    request.expected_type = "application/json";
    const std::string text = failure(client, std::move(request)).what();
    EXPECT_EQ(text.find("sk-"), std::string::npos) << text;
    EXPECT_NE(text.find("***"), std::string::npos) << text;
  }
}

TEST(Refusal, NobodyListens) {
  std::string url;
  {
    const test::ScriptedServer gone([](Peer&) {});
    url = gone.url();
  }
  Client client;
  Request request = post_to(url);
  request.idempotent = true;
  const Error error = failure(client, std::move(request));
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("connecting: Connection refused"), std::string::npos)
      << error.what();
  EXPECT_EQ(client.counters().attempts, 1u);
}

// It answers without reading the request, and closes, or waits.
TEST(Refusal, ReadsAnAnswerThatComesEarly) {
  for (const bool waits : {false, true}) {
    test::Count failed;
    const test::ScriptedServer server([&](Peer& peer) {
      peer.write(reply(413, "too large"));
      if (waits) failed.reaches(1);
    });
    Client client;
    const Error error = failure(client, post_to(server.url(), std::string(32 << 20, 'x')));
    failed.raise();
    EXPECT_EQ(context_of(error, "status"), "413") << error.what();
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
  }
}

// Of a server that does `script` once it has the request.
Error timeout_of(const test::ScriptedServer::Script& script, const Limits& limits) {
  const test::ScriptedServer server(script);
  Client client;
  Request request = post_to(server.url());
  request.limits = limits;
  return failure(client, std::move(request));
}
void expect_timeout(const Error& error, const std::string& part) {
  EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
  EXPECT_NE(error.message().find(part), std::string::npos) << error.what();
}

TEST(Limits, SilenceAfterAccept) {
  const auto silent = [](Peer& peer) { peer.wait_closed(); };
  expect_timeout(timeout_of(silent, {.attempt = milliseconds(300)}), "Limits::attempt of 300ms");
}

// The idle limit does not hold before the first byte.
TEST(Limits, AServerMayThink) {
  const test::ScriptedServer server([](Peer& peer) {
    peer.read();
    std::this_thread::sleep_for(milliseconds(3200));
    peer.write(reply(200, "{}"));
  });
  Client client;
  Request request = post_to(server.url());
  request.limits.idle = milliseconds(3000);
  EXPECT_EQ(ask(client, std::move(request)).status, 200);
}

TEST(Limits, StopsHalfway) {
  const auto half = [](Peer& peer) {
    peer.read();
    peer.write("HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\nabc");
    peer.wait_closed();
  };
  expect_timeout(timeout_of(half, {.idle = milliseconds(300)}), "Limits::idle of 300ms");
}

TEST(Limits, DoesNotReadTheRequest) {
  test::Count failed;
  const test::ScriptedServer server([&](Peer&) { failed.reaches(1); });
  Client client;
  Request request = post_to(server.url(), std::string(64 << 20, 'x'));
  request.limits.idle = milliseconds(300);
  const Error error = failure(client, std::move(request));
  failed.raise();
  expect_timeout(error, "sending the request: no byte");
}

// An interim answer does not begin the answer.
TEST(Limits, AServerMaySayThatItThinks) {
  const test::ScriptedServer server([](Peer& peer) {
    peer.read();
    peer.write("HTTP/1.1 100 Con");
    std::this_thread::sleep_for(milliseconds(50));
    peer.write("tinue\r\n\r\n");
    peer.wait_closed();
  });
  Client client;
  Request request = post_to(server.url());
  request.limits = {.attempt = milliseconds(3500), .idle = milliseconds(3000)};
  expect_timeout(failure(client, std::move(request)), "Limits::attempt");
}

// A byte now and then keeps the idle limit away, not the others.
void drip(Peer& peer) {
  peer.read();
  peer.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
  while (peer.write("x"))
    std::this_thread::sleep_for(milliseconds(5));
}
TEST(Limits, SlowLoris) {
  const Limits limits{.attempt = milliseconds(400), .idle = std::chrono::minutes(5)};
  expect_timeout(timeout_of(drip, limits), "Limits::attempt of 400ms");
}

TEST(Limits, TheDeadlineHolds) {
  const test::ScriptedServer server(drip);
  Client client;
  const auto start = Deadline::Clock::now();
  auto answer = client.send(post_to(server.url()), Deadline::after(milliseconds(400)));
  const Error error = test::error_of([&] { answer.get(); });
  expect_timeout(error, "before the deadline");
  EXPECT_GE(Deadline::Clock::now() - start, milliseconds(399));
}

TEST(Limits, ABodyWithoutEnd) {
  const auto endless = [](Peer& peer) {
    peer.read();
    peer.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (peer.write("3E8\r\n" + std::string(1000, 'x') + "\r\n")) {
    }
  };
  Limits limits{.body_bytes = 1 << 20};
  limits.body_advice = "ask for fewer positions";
  const Error error = timeout_of(endless, limits);
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted) << error.what();
  EXPECT_NE(error.message().find("limit of 1048576 bytes; ask for fewer"), std::string::npos)
      << error.what();
}

}  // namespace
}  // namespace retort::http
