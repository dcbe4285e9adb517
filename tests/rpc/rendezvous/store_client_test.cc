// Our store beyond c10d's: many threads on one client, limits, and ends of all kinds.
#include "rpc/rendezvous/store_client.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "rpc/launcher_port/frame_connection.h"
#include "rpc/launcher_port/store_identity.h"
#include "rpc/transport/acceptor.h"
#include "tests/rpc/rendezvous/store_fixture.h"
#include "tests/support/process.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::rendezvous::testing {
namespace {

using test::wait_until;

// What it throws of c10's, in one line; "" if nothing.
template <class Exception>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& e) {
    const std::string text = e.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  }
  return "";
}

bool waiters_become(StoreServer& server, size_t count) {
  return wait_until([&] { return server.stats().waiters == count; });
}

class OneClient : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<StoreServer> server = make_server(GetParam());
  StorePtr store = connect(server->port(), GetParam());
};

TEST_P(OneClient, ManyThreadsWaitAtOnce) {
  constexpr size_t kThreads = 24;
  std::atomic<size_t> done{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, key = std::to_string(i)] {
      EXPECT_EQ(text(store->get(key)), "value of " + key);
      ++done;
    });

  // All of them wait, and the same client is free for whoever brings the keys.
  ASSERT_TRUE(waiters_become(*server, kThreads));
  EXPECT_EQ(done, 0u);
  EXPECT_EQ(server->stats().connections, 1u);
  store->set("0", bytes("value of 0"));
  EXPECT_TRUE(wait_until([&] { return done == 1; }));
  for (size_t i = kThreads; i-- > 1;)
    store->set(std::to_string(i), bytes("value of " + std::to_string(i)));
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(server->stats().waiters, 0u);
}

TEST_P(OneClient, ManyThreadsAddUp) {
  constexpr int64_t kThreads = 8;
  constexpr int64_t kEach = 50;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int64_t k = 0; k < kEach; ++k)
        store->add("count", 1);
    });
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(store->add("count", 0), kThreads * kEach);
}

TEST_P(OneClient, WaitersGetAnErrorAtOnceWhenTheServerEnds) {
  constexpr size_t kThreads = 6;
  const StorePtr other = connect(server->port(), GetParam());
  std::vector<std::string> messages(kThreads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      messages[i] = message_of<c10::DistNetworkError>(
          [&] { (i % 2 == 0 ? store : other)->wait({"never"}, 1h); });
    });
  ASSERT_TRUE(waiters_become(*server, kThreads));
  const std::string address = server->addresses().front();
  server.reset();
  for (std::thread& thread : threads)
    thread.join();

  for (const std::string& message : messages) {
    EXPECT_NE(message.find("store wait of 'never' failed"), std::string::npos) << message;
    EXPECT_NE(message.find("the connection to the run's store is lost"), std::string::npos);
    EXPECT_NE(message.find(address), std::string::npos) << message;
    EXPECT_EQ(message.find("timed out"), std::string::npos) << message;
  }
  EXPECT_THROW(store->set("later", bytes("1")), c10::DistNetworkError);
  EXPECT_THROW(store->clone()->check({"later"}), c10::DistNetworkError);
}

TEST_P(OneClient, AKilledProcessLeavesNothingBehind) {
  auto child = test::ChildProcess::spawn(
      {.role = "waiter", .args = {std::to_string(server->port()), GetParam() ? "tls" : "plain"}});
  EXPECT_EQ(child.read_line(soon()), "connected");
  ASSERT_TRUE(waiters_become(*server, 1));
  EXPECT_EQ(server->stats().connections, 2u);
  child.kill();
  EXPECT_TRUE(waiters_become(*server, 0));
  EXPECT_TRUE(wait_until([&] { return server->stats().connections == 1; }));
  store->set("never", bytes("after all"));
  EXPECT_EQ(text(store->get("never")), "after all");
}

TEST_P(OneClient, ACloneHasATimeoutOfItsOwn) {
  const StorePtr clone = store->clone();
  clone->setTimeout(20ms);
  EXPECT_THROW(clone->get("never"), c10::DistStoreError);
  EXPECT_EQ(store->getTimeout(), 60s);
  EXPECT_EQ(server->stats().connections, 1u);
  store.reset();
  clone->setTimeout(60s);
  clone->set("key", bytes("the connection is still there"));
  EXPECT_TRUE(clone->check({"key"}));
}

INSTANTIATE_TEST_SUITE_P(Streams, OneClient, ::testing::Values(kPlain, kTls),
                         [](const auto& tls) { return std::string(tls.param ? "tls" : "plain"); });

TEST(StoreErrors, TimeoutsNameWhatIsMissing) {
  const auto server = make_server();
  const StorePtr store = connect(server->port());
  store->set("there", bytes("1"));
  const std::string message = message_of<c10::DistStoreError>([&] {
    store->wait({"run/student/there", "there", "run/student/1"}, 20ms);
  });
  EXPECT_NE(message.find("timed out after 20 ms; missing: run/student/there, run/student/1"),
            std::string::npos)
      << message;
  EXPECT_EQ(server->stats().waiters, 0u);
}

TEST(StoreErrors, ZeroIsTheStoresOwnTimeout) {
  const auto server = make_server();
  const StorePtr store = connect(server->port(), kPlain, 20ms);
  EXPECT_THROW(store->wait({"never"}, c10d::Store::kNoTimeout), c10::DistStoreError);
  EXPECT_EQ(test::code_of([&] { store->setTimeout(0ms); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(test::code_of([&] { StoreClient(make_session(server->port()), -1ms); }),
            ErrorCode::kInvalidArgument);
}

TEST(StoreErrors, WhatIsTooLargeIsRefused) {
  StoreLimits limits;
  limits.max_key_bytes = 20;
  limits.max_value_bytes = 100;
  limits.max_frame_bytes = 300;
  auto options = server_options();
  options.limits = limits;
  const auto server = make_server(kPlain, options);
  StoreClient store(make_session(server->port(), kPlain, limits), 60s);

  EXPECT_THROW(store.set(std::string(21, 'k'), bytes("1")), c10::ValueError);
  EXPECT_THROW(store.set("key", bytes(std::string(101, 'v'))), c10::ValueError);
  EXPECT_THROW(store.check(std::vector<std::string>(50, "key")), c10::ValueError);
  EXPECT_THROW(store.multiSet({"a", "b"}, {bytes("1")}), c10::ValueError);
  store.set("text", bytes("x"));
  EXPECT_THROW(store.add("text", 1), c10::ValueError);
  EXPECT_EQ(store.getNumKeys(), 1);
}

TEST(StoreErrors, AServerChecksForItself) {
  auto options = server_options();
  options.limits.max_value_bytes = 10;
  options.limits.max_keys = 1;
  const auto server = make_server(kPlain, options);
  const StorePtr store = connect(server->port());  // which knows of no such limits
  EXPECT_THROW(store->set("key", bytes("12345678901")), c10::ValueError);
  store->set("key", bytes("1"));
  EXPECT_NE(message_of<c10::DistStoreError>([&] { store->add("another", 1); }).find("full"),
            std::string::npos);
  EXPECT_EQ(text(store->get("key")), "1");
}

// A server that answers as a test says; nullopt: not at all.
class OddServer {
 public:
  using Answer = std::function<std::optional<StoreReply>(const StoreRequest&)>;

  explicit OddServer(Answer answer) : answer_(std::move(answer)) {
    transport::AcceptorHandlers handlers;
    handlers.on_control = [this](std::shared_ptr<transport::Stream> stream, const auto&) {
      serve(std::make_shared<launcher_port::FrameConnection>(loop_->io(), std::move(stream),
                                                             StoreLimits{}.frames()));
    };
    acceptor_ = std::make_shared<transport::Acceptor>(loop_, server_options().acceptor,
                                                      identity_of(launcher_port::kStoreName),
                                                      streams(kPlain), handlers);
    acceptor_->start();
    loop_->start();
  }
  ~OddServer() {
    loop_->post([this] {
      acceptor_->close();
      for (const auto& connection : connections_)
        connection->close();
    });
    loop_->stop();
  }

  uint16_t port() const {
    const std::string address = acceptor_->addresses().front();
    return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }

 private:
  void serve(std::shared_ptr<launcher_port::FrameConnection> connection) {
    connections_.push_back(connection);
    const auto on_frame = [this, to = connection.get()](std::string_view content) {
      const auto request = from_bytes<StoreRequest>(content);
      if (const auto reply = answer_(request)) to->send(frame_of(*reply));
    };
    connection->start(on_frame, [](const Error&) {});
  }

  const Answer answer_;
  const std::shared_ptr<rpc::detail::Loop> loop_ = std::make_shared<rpc::detail::Loop>();
  std::shared_ptr<transport::Acceptor> acceptor_;
  std::vector<std::shared_ptr<launcher_port::FrameConnection>> connections_;
};

TEST(StoreErrors, ASilentServerCostsTheTimeoutAndNoMore) {
  const OddServer server([](const StoreRequest&) { return std::nullopt; });
  const StorePtr store = connect(server.port(), kPlain, 30ms);
  const std::string message =
      message_of<c10::DistStoreError>([&] { store->set("key", bytes("1")); });
  EXPECT_NE(message.find("timed out"), std::string::npos) << message;
}

TEST(StoreErrors, AnAnswerWithTheWrongNumberOfValuesIsAnError) {
  const OddServer server(
      [](const StoreRequest& request) { return StoreReply{.id = request.id, .values = {"1"}}; });
  const StorePtr store = connect(server.port());
  EXPECT_EQ(text(store->get("key")), "1");
  for (const auto& call : std::vector<std::function<void()>>{[&] { store->set("key", bytes("1")); },
                                                             [&] {
                                                               store->multiGet({"a", "b"});
                                                             }}) {
    const std::string message = message_of<c10::DistStoreError>(call);
    EXPECT_NE(message.find("answered with 1 values instead of"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace retort::rpc::rendezvous::testing
