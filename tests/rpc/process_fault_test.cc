// Peers that die, freeze and come back, as real processes, plain and under TLS.
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>

#include "tests/rpc/echo.h"
#include "tests/support/process.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::testing {
namespace {

using test::ChildProcess;

struct Peer {
  ChildProcess process;
  std::string address;
};

class PeerFault : public ::testing::TestWithParam<std::string> {
 protected:
  RpcOptions rpc() const { return rpc_options(GetParam()); }
  Peer spawn_server() {
    auto process = ChildProcess::spawn({.role = "server", .args = {GetParam()}});
    std::string address = process.read_line(soon());
    return {std::move(process), address};
  }
  void SetUp() override {
    client.on_peer_lost([this](const std::string& peer, const std::string&) {
      std::lock_guard lock(mutex);
      lost.push_back(peer);
      changed.notify_all();
    });
  }
  bool wait_for_loss(size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_until(lock, soon().time(), [&] { return lost.size() >= count; });
  }
  Future<EchoReply> echo(EchoRequest request) { return client.call("teacher/0", kEcho, request); }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lost;
  Agent client{agent_options("student/0", rpc())};
};

TEST_P(PeerFault, AProcessServesAndEndsCleanly) {
  auto peer = spawn_server();
  client.connect("teacher/0", peer.address, soon());
  const auto sent = at::rand({1000, 1000});
  EXPECT_TRUE(at::equal(echo({.tensors = {sent}}).get(soon()).tensors.at(0), sent));
  peer.process.close_stdin();
  EXPECT_EQ(peer.process.wait(soon()), 0);
  EXPECT_TRUE(wait_for_loss(1));
}

TEST_P(PeerFault, KilledBeforeACall) {
  auto peer = spawn_server();
  client.connect("teacher/0", peer.address, soon());
  peer.process.kill();
  ASSERT_TRUE(wait_for_loss(1));
  auto future = echo({});
  EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
  EXPECT_TRUE(client.peers().empty());
}

TEST_P(PeerFault, KilledDuringACallFailsItAtOnce) {
  auto peer = spawn_server();
  client.connect("teacher/0", peer.address, soon());
  echo({}).get(soon());
  std::vector<Future<EchoReply>> futures;
  for (int i = 0; i < 10; ++i)
    futures.push_back(echo({.sleep_ms = 60000}));
  EXPECT_EQ(peer.process.read_line(soon()), "echo runs");
  peer.process.kill();
  const auto start = std::chrono::steady_clock::now();
  for (auto& future : futures)
    EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
  // Far below the peer's timeout (15 s) and the call's (120 s): the loss itself was seen.
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST_P(PeerFault, KilledAmidLargeTransfersLeavesNoCallBehind) {
  for (int round = 0; round < 4; ++round) {
    auto peer = spawn_server();
    client.connect("teacher/0", peer.address, soon());
    echo({}).get(soon());
    std::vector<Future<EchoReply>> futures;
    for (int i = 0; i < 6; ++i)
      futures.push_back(echo({.tensors = {at::ones({4 << 20})}}));
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
    peer.process.kill();
    for (auto& future : futures) {
      try {
        EXPECT_EQ(future.get(soon()).tensors.size(), 1u);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
      }
    }
    EXPECT_TRUE(wait_for_loss(static_cast<size_t>(round) + 1));
    EXPECT_TRUE(
        test::wait_until([&] { return client.stats("teacher/0").inflight_bytes == 0; }, 30s));
  }
}

TEST_P(PeerFault, ANewIncarnationIsReachedByConnectingAgain) {
  for (int round = 0; round < 3; ++round) {
    auto peer = spawn_server();
    client.connect("teacher/0", peer.address, soon());
    EXPECT_EQ(echo({.text = std::to_string(round)}).get(soon()).text, std::to_string(round));
    peer.process.kill();
    // No wait: connect() and calls must sort out the old one by themselves.
  }
  EXPECT_TRUE(wait_for_loss(1));
}

TEST_P(PeerFault, AFrozenPeerIsLostAfterPeerTimeoutAndMayComeBack) {
  auto options = rpc();
  options.heartbeat_interval = Duration(200);
  options.peer_timeout = Duration(3000);
  Agent impatient(agent_options("student/1", options));
  auto peer = spawn_server();
  impatient.connect("teacher/0", peer.address, soon());
  auto future = impatient.call("teacher/0", kEcho, {.sleep_ms = 60000});
  EXPECT_EQ(peer.process.read_line(soon()), "echo runs");
  const auto start = std::chrono::steady_clock::now();
  peer.process.send_signal(SIGSTOP);
  EXPECT_EQ(code_of(future), ErrorCode::kPeerLost);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 1500ms)
      << "not before it was silent for the timeout";
  peer.process.send_signal(SIGCONT);
  impatient.connect("teacher/0", peer.address, soon());
  EXPECT_EQ(impatient.call("teacher/0", kEcho, {.text = "back"}).get(soon()).text, "back");
}

TEST_P(PeerFault, ALongHandlerIsNoSilence) {
  auto options = rpc();
  options.heartbeat_interval = Duration(200);
  options.peer_timeout = Duration(3000);
  Agent impatient(agent_options("student/1", options));
  auto peer = spawn_server();
  impatient.connect("teacher/0", peer.address, soon());
  EXPECT_EQ(impatient.call("teacher/0", kEcho, {.text = "slow", .sleep_ms = 5000}).get(soon()).text,
            "slow");
}

TEST_P(PeerFault, ACallerThatDiesCancelsItsHandler) {
  HandlerThread handlers;
  Agent server(agent_options("teacher/1", rpc()));
  auto ran = std::make_shared<std::atomic<int>>(0);
  serve_echo(server, handlers.queue, ran);
  auto caller = ChildProcess::spawn({.role = "caller", .args = {GetParam(), server.address()}});
  EXPECT_EQ(caller.read_line(soon()), "calling");
  const auto deadline = soon();
  while (*ran == 0 && !deadline.expired())
    std::this_thread::sleep_for(1ms);
  caller.kill();
  // The handler of the dead caller would sleep a minute; only its cancellation frees the thread for
  // this one in time.
  client.connect("teacher/1", server.address(), soon());
  EXPECT_EQ(client.call("teacher/1", kEcho, {.text = "free"}).get(soon()).text, "free");
  EXPECT_EQ(server.peers(), std::vector<std::string>{"student/0"});
}

INSTANTIATE_TEST_SUITE_P(Streams, PeerFault, ::testing::Values("plain", "tls"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace retort::rpc::testing
