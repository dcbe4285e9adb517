// Requests whose attempts break on their way, and are sent again.
#include <gtest/gtest.h>

#include <atomic>

#include "http/client.h"
#include "tests/http/requests.h"

namespace retort::http {
namespace {

using test::ask, test::failure, test::post_to, test::reply;

// Breaks the first `times` connections with these bytes, answers on the others.
class Breaking {
 public:
  Breaking(int times, std::string bytes) : times_(times), bytes_(std::move(bytes)) {}
  std::string url() const { return server_.url(); }
  int taken() const { return taken_; }

 private:
  const int times_;
  const std::string bytes_;
  std::atomic<int> taken_{0};
  const test::ScriptedServer server_{[this](test::Peer& peer) {
    if (!peer.read()) return;
    peer.write(taken_++ < times_ ? bytes_ : reply(200, "whole"));
  }};
};

const std::string kHalf = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf";

Request resent(const std::string& url, int times) {
  Request request = post_to(url);
  request.idempotent = true;
  request.resends = times;
  return request;
}

TEST(Resend, UntilAnAnswerIsWhole) {
  for (const std::string& bytes : {std::string(), kHalf}) {
    const Breaking server(2, bytes);
    Client client;
    EXPECT_EQ(ask(client, resent(server.url(), 2)).body, "whole") << bytes;
    EXPECT_EQ(client.counters().attempts, 3u);
    EXPECT_EQ(client.counters().retries, 2u);
  }
}

TEST(Resend, AsOftenAsIsAsked) {
  const Breaking server(99, "");
  Client client;
  const Error error = failure(client, resent(server.url(), 1));
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("(sent 2 times)"), std::string::npos) << error.what();
  EXPECT_EQ(server.taken(), 2);
}

TEST(Resend, NotOfWhatMayRunTwiceOnlyToHarm) {
  const Breaking server(1, "");
  Client client;
  Request request = resent(server.url(), 2);
  request.idempotent = false;
  EXPECT_EQ(failure(client, std::move(request)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(server.taken(), 1);
}

// Who has read the beginning cannot begin anew.
TEST(Resend, NotOnceTheBodyWasTaken) {
  const Breaking server(1, kHalf);
  Client client;
  Request request = resent(server.url(), 2);
  std::string taken;
  request.on_body = [&](std::string_view bytes) { taken += bytes; };
  EXPECT_EQ(failure(client, std::move(request)).code(), ErrorCode::kCorrupt);
  EXPECT_EQ(taken, "half");
  EXPECT_EQ(server.taken(), 1);
}

TEST(Resend, OfRefusedConnections) {
  std::string url;
  {
    const Breaking gone(0, "");
    url = gone.url();
  }
  Client client;
  EXPECT_EQ(failure(client, resent(url, 2)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(client.counters().connections, 3u);
}

// An answer is one, whatever it says.
TEST(Resend, NotOfAnswers) {
  const Breaking server(1, reply(500, "no"));
  Client client;
  EXPECT_EQ(failure(client, resent(server.url(), 2)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(server.taken(), 1);
}

}  // namespace
}  // namespace retort::http
