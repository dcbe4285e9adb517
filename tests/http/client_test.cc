// Requests to a server that behaves.
#include "http/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>
#include <vector>

#include "http/events.h"
#include "tests/http/requests.h"
#include "tests/support/wait_until.h"

namespace retort::http {
namespace {

using test::Received, test::ask, test::post_to, test::reply, test::soon;

TEST(Client, SendsAndReceives) {
  test::Count requests;
  Received received;
  const test::ScriptedServer server(test::answer_all([&](const Received& request) {
    received = request;
    requests.raise();
    return reply(201, R"({"a": 1})", "X-Id: 7\r\n");
  }));

  Client client;
  Request request = post_to(server.url("/v1/x?y=z"), R"({"b": )");
  request.body.push_back(piece_of(""));
  request.body.push_back(piece_of("2}"));
  request.headers.push_back({"X-Mine", "here"});
  const Response response = ask(client, std::move(request));

  EXPECT_EQ(response.status, 201);
  EXPECT_EQ(response.body, R"({"a": 1})");
  EXPECT_EQ(*find_header(response.headers, "x-id"), "7");
  ASSERT_TRUE(requests.reaches(1));
  EXPECT_EQ(received.method, "POST");
  EXPECT_EQ(received.target, "/v1/x?y=z");
  EXPECT_EQ(received.body, R"({"b": 2})");
  EXPECT_EQ(received.headers["x-mine"], "here");
  EXPECT_EQ(received.headers["content-type"], "application/json");
  EXPECT_EQ(received.headers["accept-encoding"], "identity");
  EXPECT_EQ(received.headers.count("authorization"), 0u);
}

TEST(Client, CountsWhatItDoes) {
  const test::ScriptedServer server(
      test::answer_all([](const Received&) { return reply(200, std::string(1000, 'x')); }));
  Client client;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(ask(client, post_to(server.url(), std::string(500, 'y'))).body.size(), 1000u);

  const ClientCounters counters = client.counters();
  EXPECT_EQ(counters.requests, 3u);
  EXPECT_EQ(counters.attempts, 3u);
  EXPECT_EQ(counters.retries, 0u);
  EXPECT_EQ(counters.pauses, 0u);
  EXPECT_EQ(counters.connections, 1u);
  EXPECT_EQ(counters.bytes_in, 3 * reply(200, std::string(1000, 'x')).size());
  EXPECT_GT(counters.bytes_out, 3u * 500);
  EXPECT_LT(counters.bytes_out, 3u * 1000);
}

TEST(Client, SendsTheKey) {
  std::vector<std::map<std::string, std::string>> headers;
  const test::ScriptedServer server(test::answer_all([&](const Received& request) {
    headers.push_back(request.headers);
    return reply(200, "{}");
  }));
  {
    Client bearer({.api_key = "sk-1"});
    ask(bearer, {.method = Method::kGet, .url = parse_url(server.url())});
  }
  Client plain({.api_key = "sk-2", .api_key_header = "x-api-key"});
  ask(plain, {.method = Method::kGet, .url = parse_url(server.url())});
  ASSERT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers[0]["authorization"], "Bearer sk-1");
  EXPECT_EQ(headers[1]["x-api-key"], "sk-2");
  EXPECT_EQ(headers[1].count("authorization"), 0u);
}

TEST(Client, KnowsNamesAndVersion6) {
  const auto hello = test::answer_all(
      [](const Received& request) { return reply(200, request.headers.at("host")); });
  const test::ScriptedServer v4(hello);
  const test::ScriptedServer v6(hello, {}, "::1");
  Client client;
  EXPECT_TRUE(ask(client, post_to(v4.url_of("localhost"))).body.starts_with("localhost:"));
  EXPECT_TRUE(ask(client, post_to(v6.url())).body.starts_with("[::1]:"));
}

// Bodies larger than any buffer on the way, in pieces that lie where they are.
TEST(Client, MovesLargeBodies) {
  const test::ScriptedServer server(
      test::answer_all([](const Received& request) { return reply(200, request.body); }));
  const auto data = std::make_shared<std::string>();
  for (int i = 0; data->size() < (8 << 20); ++i)
    *data += std::to_string(i) + ",";

  Client client;
  Request request{.url = parse_url(server.url())};
  const size_t piece = data->size() / 40 + 1;
  for (size_t at = 0; at < data->size(); at += piece)
    request.body.push_back({std::string_view(*data).substr(at, piece), data});
  request.limits.body_bytes = 64 << 20;
  const std::weak_ptr<std::string> weak = data;
  EXPECT_TRUE(ask(client, std::move(request)).body == *data);
}

TEST(Client, LetsGoOfTheBody) {
  const test::ScriptedServer server(
      test::answer_all([](const Received&) { return reply(200, "{}"); }));
  auto data = std::make_shared<std::string>("{}");
  const std::weak_ptr<std::string> weak = data;
  {
    Client client;
    Request request{.url = parse_url(server.url())};
    request.body.push_back({*data, std::move(data)});
    ask(client, std::move(request));
  }
  EXPECT_TRUE(weak.expired());
}

TEST(Client, StreamsABody) {
  const test::ScriptedServer server([](test::Peer& peer) {
    while (peer.read()) {
      peer.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab");
      peer.write("c\r\n1");
      peer.write("0\r\n0123456789abcdef\r\n0\r\n\r\n");
    }
  });
  Client client;
  for (int i = 0; i < 2; ++i) {
    std::string got;
    Request request = post_to(server.url());
    request.on_body = [&](std::string_view bytes) { got += bytes; };
    EXPECT_EQ(ask(client, std::move(request)).body, "");
    EXPECT_EQ(got, "abc0123456789abcdef");
  }
  EXPECT_EQ(server.num_connections(), 1);
}

TEST(Client, EndsWithWhatOnBodyThrows) {
  const test::ScriptedServer server([](test::Peer& peer) {
    peer.read();
    peer.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst");
    peer.wait_closed();
  });
  Client client;
  Request request = post_to(server.url());
  request.on_body = [](std::string_view) { throw std::out_of_range("too much"); };
  auto answer = client.send(std::move(request), soon());
  EXPECT_THROW(answer.get(), std::out_of_range);
}

TEST(Client, ReadsEvents) {
  const std::string stream =
      ": hello\r\n\r\ndata: {\"i\":\r\ndata: 1}\r\n\r\nevent: usage\r\ndata: 2\r\n\r\n"
      "data: [DONE]\r\n\r\n";
  const test::ScriptedServer server([&](test::Peer& peer) {
    const auto request = peer.read();
    peer.write(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    const std::string sent = request->target == "/cut" ? stream.substr(0, 30) : stream;
    for (const char c : sent)
      peer.write(std::string("1\r\n") + c + "\r\n");
    peer.write("0\r\n\r\n");
  });

  Client client;
  std::vector<std::string> got;
  const auto on_event = [&](const Event& event) { got.push_back(event.type + "|" + event.data); };
  const auto answer = send_for_events(client, post_to(server.url()), soon(), on_event).get();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(got, (std::vector<std::string>{"|{\"i\":\n1}", "usage|2"}));

  // The server closes after each answer, so that a connection is of no use again.
  Client second;
  const Error error = test::error_of(
      [&] { send_for_events(second, post_to(server.url("/cut")), soon(), on_event).get(); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
  EXPECT_EQ(test::context_of(error, "url"), server.url("/cut"));
}

TEST(Client, RunsOnALoopOfTheCaller) {
  // Answered once somebody waits for it: a future that is ready calls who comes, on his thread.
  std::atomic<bool> is_awaited{false};
  const test::ScriptedServer server(test::answer_all([&](const Received&) {
    EXPECT_TRUE(test::wait_until([&] { return is_awaited.load(); }));
    return reply(200, "{}");
  }));
  boost::asio::io_context io(1);
  auto work = boost::asio::make_work_guard(io);
  std::thread loop([&] { io.run(); });
  {
    Client client(io, {});
    std::atomic<bool> there{false};
    auto length = client.send(post_to(server.url()), soon()).then([&](Response response) {
      there = std::this_thread::get_id() == loop.get_id();
      return response.body.size();
    });
    is_awaited = true;
    EXPECT_EQ(length.get(), 2u);
    EXPECT_TRUE(there);
  }
  work.reset();
  loop.join();
}

TEST(Client, RefusesOptionsAndHeaders) {
  test::expect_refused("max_inflight is 0", [] { Client client({.max_inflight = 0}); });
  test::expect_refused("keep_idle", [] { Client client({.keep_idle = Duration(-1)}); });
  test::expect_refused("connect_timeout", [] { Client client({.connect_timeout = Duration(0)}); });
  test::expect_refused("ca_file /nowhere.pem", [] { Client client({.ca_file = "/nowhere.pem"}); });

  Client client({.api_key = "sk-1\n"});
  const Error error = test::error_of([&] { client.send(post_to("http://127.0.0.1:1"), soon()); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(std::string(error.what()).find("sk-1"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace retort::http
