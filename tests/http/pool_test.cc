// Which connection a request takes, in which order requests are sent, and how they are given up.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "http/client.h"
#include "tests/http/requests.h"
#include "tests/support/wait_until.h"

namespace retort::http {
namespace {

using test::Count, test::Peer, test::ask, test::failure, test::post_to, test::reply, test::soon;

TEST(Pool, TakesTheConnectionThatWasUsedLast) {
  Count arrived;
  Count released[2];
  const test::ScriptedServer server([&](Peer& peer) {
    for (int i = 0; peer.read(); ++i) {
      arrived.raise();
      if (i == 0) released[peer.index()].reaches(1);
      peer.write(reply(200, std::to_string(peer.index())));
    }
  });

  // Both are open at the same time; connection 1 becomes free first, then 0.
  Client client;
  std::vector<Future<Response>> answers;
  answers.push_back(client.send(post_to(server.url()), soon()));
  answers.push_back(client.send(post_to(server.url()), soon()));
  ASSERT_TRUE(arrived.reaches(2));
  released[1].raise();
  ASSERT_TRUE(test::wait_until([&] { return answers[0].ready() || answers[1].ready(); }));
  released[0].raise();
  for (auto& answer : answers)
    answer.get();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(ask(client, post_to(server.url())).body, "0");
  EXPECT_EQ(client.counters().connections, 2u);
}

TEST(Pool, ClosesConnectionsThatNobodyUses) {
  Count closed;
  const test::ScriptedServer server([&](Peer& peer) {
    peer.read();
    peer.write(reply(200, "{}"));
    peer.wait_closed();
    closed.raise();
  });
  Client client({.keep_idle = std::chrono::milliseconds(1)});
  ask(client, post_to(server.url()));
  EXPECT_TRUE(closed.reaches(1)) << "without another request";
  ask(client, post_to(server.url()));
  EXPECT_EQ(client.counters().connections, 2u);
}

TEST(Pool, SeesThatTheServerClosed) {
  Count closed;
  const test::ScriptedServer server([&](Peer& peer) {
    peer.read();
    peer.write(reply(200, "{}"));
    peer.close();
    closed.raise();
  });
  Client client({.keep_idle = std::chrono::hours(1)});
  for (int i = 1; i <= 3; ++i) {
    ask(client, post_to(server.url()));
    ASSERT_TRUE(closed.reaches(i));
  }
  EXPECT_EQ(client.counters().connections, 3u);
  EXPECT_EQ(client.counters().retries, 0u);
}

TEST(Pool, DropsConnectionsOnWhichTheServerSpeaksUnasked) {
  Count have_answer;
  Count said;
  const test::ScriptedServer server([&](Peer& peer) {
    peer.read();
    peer.write(reply(200, "{}"));
    if (peer.index() > 0) return;
    have_answer.reaches(1);
    peer.write("HTTP/1.1 408 Request Timeout\r\n\r\n");
    said.raise();
    peer.wait_closed();
  });
  Client client({.keep_idle = std::chrono::hours(1)});
  ask(client, post_to(server.url()));
  have_answer.raise();
  ASSERT_TRUE(said.reaches(1));
  EXPECT_EQ(ask(client, post_to(server.url())).status, 200);
  EXPECT_EQ(client.counters().connections, 2u);
}

TEST(Pool, ObeysConnectionClose) {
  const test::ScriptedServer server(test::answer_all(
      [](const test::Received&) { return reply(200, "{}", "Connection: close\r\n"); }));
  Client client;
  for (int i = 0; i < 2; ++i)
    ask(client, post_to(server.url()));
  EXPECT_EQ(client.counters().connections, 2u);
}

// The first connection takes a second request and closes without a word.
class ClosedWithoutAnswer : public testing::Test {
 protected:
  Count taken_;
  const test::ScriptedServer server_{[this](Peer& peer) {
    for (int i = 0; peer.read(); ++i) {
      taken_.raise();
      if (peer.index() == 0 && i == 1) return;
      peer.write(reply(200, std::to_string(peer.index())));
    }
  }};
};

TEST_F(ClosedWithoutAnswer, IdempotentRequestsAreSentAgain) {
  Client client({.keep_idle = std::chrono::hours(1)});
  EXPECT_EQ(ask(client, post_to(server_.url())).body, "0");
  Request request = post_to(server_.url());
  request.idempotent = true;
  EXPECT_EQ(ask(client, std::move(request)).body, "1");
  EXPECT_EQ(taken_.value(), 3);
  EXPECT_EQ(client.counters().attempts, 3u);
  EXPECT_EQ(client.counters().retries, 1u);
}

TEST_F(ClosedWithoutAnswer, OthersAreNot) {
  Client client({.keep_idle = std::chrono::hours(1)});
  ask(client, post_to(server_.url()));
  const Error error = failure(client, post_to(server_.url("/x")));
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("not marked as idempotent"), std::string::npos) << error.what();
  EXPECT_EQ(taken_.value(), 2);
  EXPECT_EQ(client.counters().retries, 0u);
}

TEST(Pool, ANewConnectionThatClosesIsAnError) {
  Count taken;
  const test::ScriptedServer server([&](Peer& peer) {
    peer.read();
    taken.raise();
  });
  Client client;
  Request request = post_to(server.url());
  request.idempotent = true;
  const Error error = failure(client, std::move(request));
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_NE(error.message().find("closed by the server before an answer"), std::string::npos)
      << error.what();
  EXPECT_EQ(taken.value(), 1);
}

// What a server sees of requests that it answers one by one, on whatever connection.
class Line : public testing::Test {
 protected:
  std::string arrival(int index) {
    EXPECT_TRUE(arrived_.reaches(index + 1));
    const std::lock_guard lock(mutex_);
    return bodies_[static_cast<size_t>(index)];
  }
  Future<Response> send(int number) {
    return client_.send(post_to(server_.url(), std::to_string(number)), soon());
  }

  Count arrived_;
  std::mutex mutex_;
  std::vector<std::string> bodies_;
  std::map<std::string, Count> released_;
  const test::ScriptedServer server_{[this](Peer& peer) {
    while (const auto request = peer.read()) {
      Count* released = nullptr;
      {
        const std::lock_guard lock(mutex_);
        bodies_.push_back(request->body);
        released = &released_[request->body];
      }
      arrived_.raise();
      released->reaches(1);
      peer.write(reply(200, request->body));
    }
  }};
  void release(const std::string& body) {
    const std::lock_guard lock(mutex_);
    released_[body].raise();
  }
  Client client_{ClientOptions{.max_inflight = 4}};
};

TEST_F(Line, FourOfSixtyFourInOrder) {
  std::vector<Future<Response>> answers;
  for (int i = 0; i < 64; ++i)
    answers.push_back(send(i));
  std::set<std::string> first;
  for (int i = 0; i < 4; ++i)
    first.insert(arrival(i));
  EXPECT_EQ(first, (std::set<std::string>{"0", "1", "2", "3"}));

  // Each answer lets one request follow: the one that waits longest.
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(arrived_.value(), i + 4);
    release(std::to_string(i));
    ASSERT_EQ(arrival(i + 4), std::to_string(i + 4));
  }
  for (int i = 60; i < 64; ++i)
    release(std::to_string(i));
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(answers[static_cast<size_t>(i)].get().body, std::to_string(i));
  EXPECT_EQ(server_.num_connections(), 4);
}

TEST_F(Line, GivesUpWaiting) {
  std::vector<Future<Response>> answers;
  for (int i = 0; i < 5; ++i)
    answers.push_back(send(i));
  arrival(3);
  Request request = post_to(server_.url(), "late");
  request.limits.place = std::chrono::milliseconds(10);
  const Error error = failure(client_, std::move(request));
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_NE(error.message().find("no place among the 4"), std::string::npos) << error.what();

  // Of those behind it, one is cancelled and one goes on.
  auto cancelled = send(5);
  answers.push_back(send(6));
  answers[4].cancel();
  cancelled.cancel();
  EXPECT_EQ(test::code_of([&] { cancelled.get(); }), ErrorCode::kCancelled);
  EXPECT_EQ(test::code_of([&] { answers[4].get(); }), ErrorCode::kCancelled);
  release("2");
  EXPECT_EQ(arrival(4), "6");
  for (const char* body : {"0", "1", "3", "6"})
    release(body);
  EXPECT_EQ(answers[5].get().body, "6");
}

TEST(Cancel, ClosesTheConnection) {
  Count taken;
  Count closed;
  const test::ScriptedServer server([&](Peer& peer) {
    peer.read();
    taken.raise();
    peer.wait_closed();
    closed.raise();
  });
  Client client;
  auto answer = client.send(post_to(server.url()), soon());
  ASSERT_TRUE(taken.reaches(1));
  answer.cancel();
  const Error error = test::error_of([&] { answer.get(); });
  EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  EXPECT_EQ(test::context_of(error, "url"), server.url());
  EXPECT_TRUE(closed.reaches(1));
}

TEST(Close, EndsWhatIsOpen) {
  Count taken;
  const test::ScriptedServer server([&](Peer& peer) {
    peer.read();
    taken.raise();
    peer.wait_closed();
  });
  auto client = std::make_unique<Client>(ClientOptions{.max_inflight = 1});
  auto first = client->send(post_to(server.url()), soon());
  auto second = client->send(post_to(server.url()), soon());
  ASSERT_TRUE(taken.reaches(1));
  client.reset();
  EXPECT_EQ(test::code_of([&] { first.get(); }), ErrorCode::kClosed);
  EXPECT_EQ(test::code_of([&] { second.get(); }), ErrorCode::kClosed);
}

}  // namespace
}  // namespace retort::http
