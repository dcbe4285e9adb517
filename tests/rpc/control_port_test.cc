// What strangers and liars can do to an agent: cost themselves a connection, and nothing else.
// Every test ends with a real call of a real peer that was connected all the time.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "base/hash.h"
#include "base/random.h"
#include "rpc/detail/envelope.h"
#include "rpc/detail/peer_state.h"
#include "rpc/detail/tensor_format.h"
#include "tests/rpc/echo.h"
#include "tests/rpc/failing_new.h"
#include "tests/rpc/raw_peer.h"

namespace retort::rpc::testing {
namespace {

class ControlPort : public ::testing::Test {
 protected:
  static RpcOptions options() {
    RpcOptions rpc;
    rpc.max_message_bytes = {8 << 20};
    rpc.heartbeat_interval = Duration(100);
    return rpc;
  }
  void SetUp() override {
    serve_echo(server, handlers.queue, ran);
    client.connect("teacher/0", server.address(), soon());
  }
  void TearDown() override {
    const auto reply =
        client.call("teacher/0", kEcho, {.text = "real", .tensors = {at::ones({30000})}})
            .get(soon());
    EXPECT_EQ(reply.text, "real");
    EXPECT_EQ(client.peers(), std::vector<std::string>{"teacher/0"});
  }
  std::unique_ptr<RawPeer> raw() {
    return std::make_unique<RawPeer>(server.address(), "stranger/0", "teacher/0");
  }

  const std::shared_ptr<std::atomic<int>> ran = std::make_shared<std::atomic<int>>(0);
  HandlerThread handlers;
  Agent server{agent_options("teacher/0", options())};
  Agent client{agent_options("student/0", options())};
};

TEST_F(ControlPort, GarbageAndHttpEndTheirConnection) {
  std::string random;
  for (uint64_t i = 0; i < 1000; ++i)
    random += static_cast<char>(random_bits(1, i));
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (const std::string& junk :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), std::string(4, '\0'),
        std::string(1 << 20, '\xff'), random, std::string("\x05\x00\x00\x00\x00zzzz", 9),
        std::string("\x01\x00\x00\x00\x07", 5)}) {
    sockets.push_back(std::make_unique<RawSocket>(server.address()));
    sockets.back()->send(junk);
  }
  for (const auto& socket : sockets)
    while (!socket->closed_by_peer()) {  // a refusal may come first
    }
}

TEST_F(ControlPort, ASlowLorisIsCutAtTheHandshakeDeadline) {
  RawSocket silent(server.address()), slow(server.address());
  slow.send(std::string("\x40\x00", 2));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(client.call("teacher/0", kEcho, {.text = "meanwhile"}).get(soon()).text, "meanwhile");
  EXPECT_TRUE(silent.closed_by_peer());
  EXPECT_TRUE(slow.closed_by_peer());
  EXPECT_LT(std::chrono::steady_clock::now() - start, 25s);
}

TEST_F(ControlPort, AFloodOfSilentConnectionsKeepsNobodyOut) {
  std::vector<std::unique_ptr<RawSocket>> flood;
  for (int i = 0; i < 300; ++i)
    flood.push_back(std::make_unique<RawSocket>(server.address()));
  Agent late(agent_options("late/0"));
  late.connect("teacher/0", server.address(), soon());
  EXPECT_EQ(late.call("teacher/0", kEcho, {.text = "in"}).get(soon()).text, "in");
  EXPECT_TRUE(flood.front()->closed_by_peer()) << "the oldest gave way";
}

TEST_F(ControlPort, WrongSecretAndWrongNameAreUnauthenticated) {
  auto options = agent_options("student/1");
  options.secret = "another secret";
  Agent liar(options);
  EXPECT_EQ(code_of([&] { liar.connect("teacher/0", server.address(), soon()); }),
            ErrorCode::kUnauthenticated);
  EXPECT_TRUE(liar.peers().empty());
  Agent lost(agent_options("student/2"));
  EXPECT_EQ(code_of([&] { lost.connect("teacher/1", server.address(), soon()); }),
            ErrorCode::kUnauthenticated);
  EXPECT_EQ(server.peers(), std::vector<std::string>{"student/0"});
}

TEST_F(ControlPort, AnotherSchemaIsAMismatch) {
  auto options = transport::testing::node_options("student/3");
  options.identity.run = "";
  options.identity.credentials = {{"run", kSecret}};
  transport::testing::Node older(options);
  const auto result = older.dial(server.address(), {.name = "teacher/0"});
  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->code(), ErrorCode::kMismatch);
}

TEST_F(ControlPort, FramesOutOfOrderAreCorrupt) {
  auto early = raw();
  early->prove();
  early->send(detail::frame_bytes(detail::FrameType::kCancel, detail::Cancel{1}));
  EXPECT_EQ(early->receive_farewell(), ErrorCode::kCorrupt);
  auto late = raw();
  late->connect();
  late->send_ready();
  EXPECT_EQ(late->receive_farewell(), ErrorCode::kCorrupt);
}

TEST_F(ControlPort, AFrameAboveTheLimitEndsTheConnection) {
  auto peer = raw();
  peer->connect();
  const uint32_t length = detail::kMaxFrameBytes + 1;
  peer->send(std::string(reinterpret_cast<const char*>(&length), sizeof length));
  EXPECT_EQ(peer->receive_farewell(), std::nullopt);
}

TEST_F(ControlPort, AFrameThereIsNoMemoryForCostsItsConnection) {
  auto peer = raw();
  peer->connect();
  const FailingNew failing(detail::kMaxFrameBytes);
  const uint32_t length = detail::kMaxFrameBytes;
  peer->send(std::string(reinterpret_cast<const char*>(&length), sizeof length));
  EXPECT_EQ(peer->receive_farewell(), std::nullopt);
}

TEST_F(ControlPort, AMessageThereIsNoMemoryForCostsItsConnection) {
  auto peer = raw();
  peer->connect();
  std::string payload = detail::join_payload({.kind = detail::MessageKind::kRequest,
                                              .call_id = 1,
                                              .method = "test.echo",
                                              .schema = method_schema(kEcho),
                                              .timeout_ms = 60000},
                                             std::string(4 << 20, 'x'));
  const FailingNew failing(2 << 20);
  std::thread writer([&] { peer->write(0, RawPeer::message(payload)); });
  EXPECT_EQ(peer->receive_farewell(), ErrorCode::kResourceExhausted);
  writer.join();
  EXPECT_EQ(*ran, 0);
}

TEST_F(ControlPort, APipeWithoutAPlaceCostsTheSession) {
  auto peer = raw();
  peer->prove();
  peer->send_ready();
  peer->open_pipes({0, 0});
  EXPECT_EQ(peer->receive_farewell(), ErrorCode::kCorrupt);
  auto third = raw();
  third->prove();
  third->send_ready();
  third->open_pipes({0, 7});
  EXPECT_EQ(third->receive_farewell(), ErrorCode::kCorrupt);
}

TEST_F(ControlPort, AGoodRawPeerIsServed) {
  // So that the refusals below are for their reasons and not because this peer is broken.
  auto peer = raw();
  peer->connect();
  std::string payload = detail::join_payload({.kind = detail::MessageKind::kRequest,
                                              .call_id = 1,
                                              .method = "test.echo",
                                              .schema = method_schema(kEcho),
                                              .timeout_ms = 1000},
                                             to_bytes(EchoRequest{}));
  peer->write(0, RawPeer::message(payload));
  const auto deadline = soon();
  while (server.peers().size() != 2 || server.stats("stranger/0").bytes_sent == 0) {
    ASSERT_FALSE(deadline.expired());
    std::this_thread::sleep_for(1ms);
  }
}

// The request and its cancellation travel over different connections: also if the cancellation
// comes first, the handler stays away. As many are remembered as calls may be on their way.
TEST_F(ControlPort, ACancellationThatOvertakesItsCallStopsIt) {
  auto peer = raw();
  peer->connect();
  constexpr uint64_t kFirst = 5, kBehind = kFirst + detail::kMaxIncomingCalls;
  for (uint64_t id = kFirst; id < kBehind; ++id)
    peer->send(detail::frame_bytes(detail::FrameType::kCancel, detail::Cancel{id}));
  // heartbeats: the server's loop went round meanwhile
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(peer->receive_frame());
  for (const uint64_t id : {kFirst, kBehind}) {
    std::string payload = detail::join_payload({.kind = detail::MessageKind::kRequest,
                                                .call_id = id,
                                                .method = "test.echo",
                                                .schema = method_schema(kEcho),
                                                .timeout_ms = 60000},
                                               to_bytes(EchoRequest{}));
    peer->write(0, RawPeer::message(payload));
  }
  const auto deadline = soon();
  // the answer to the one that nobody cancelled, which came behind the other
  while (handlers.taken == 0 || server.stats("stranger/0").bytes_sent == 0) {
    ASSERT_FALSE(deadline.expired());
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(*ran, 1);
}

// A path that is cut alone: calls keep coming, but neither heartbeats nor cancellations nor room.
TEST_F(ControlPort, ASilentControlConnectionEndsTheSessionOfAPeerThatCalls) {
  RpcOptions rpc = options();
  rpc.peer_timeout = Duration(2000);
  Agent impatient(agent_options("teacher/1", rpc));
  serve_echo(impatient, handlers.queue);
  std::promise<std::string> lost;
  impatient.on_peer_lost(
      [&](const std::string&, const std::string& reason) { lost.set_value(reason); });
  auto reason = lost.get_future();

  RawPeer peer(impatient.address(), "stranger/0", "teacher/1");
  peer.connect();
  const Deadline deadline = soon();
  for (uint64_t id = 1; reason.wait_for(50ms) != std::future_status::ready; ++id) {
    ASSERT_FALSE(deadline.expired());
    std::string payload = detail::join_payload({.kind = detail::MessageKind::kRequest,
                                                .call_id = id,
                                                .method = "test.echo",
                                                .timeout_ms = 60000},
                                               to_bytes(EchoRequest{}));
    peer.write(0, RawPeer::message(payload));
  }
  EXPECT_NE(reason.get().find("no heartbeat"), std::string::npos);
  impatient.on_peer_lost(nullptr);
}

TEST_F(ControlPort, ABadEnvelopeCostsTheConnection) {
  std::string random;
  for (uint64_t i = 0; i < 64; ++i)
    random += static_cast<char>(random_bits(3, i));
  const std::string good = detail::join_payload({.kind = detail::MessageKind::kRequest,
                                                 .call_id = 1,
                                                 .method = "test.echo",
                                                 .schema = method_schema(kEcho),
                                                 .timeout_ms = 1000},
                                                "");
  for (std::string payload :
       {random, std::string("x"), good + "left over", good.substr(0, good.size() - 1)}) {
    auto peer = raw();
    peer->connect();
    peer->write(0, RawPeer::message(payload));
    EXPECT_EQ(peer->receive_farewell(), ErrorCode::kCorrupt);
  }
}

TEST_F(ControlPort, AnOversizedMessageIsRefusedUnread) {
  auto peer = raw();
  peer->connect();
  std::string payload(9 << 20, 'x');
  std::thread writer([&] { peer->write(1, RawPeer::message(payload)); });
  EXPECT_EQ(peer->receive_farewell(), ErrorCode::kResourceExhausted);
  writer.join();
  EXPECT_LT(server.stats("stranger/0").bytes_received, 1u << 20);
}

TEST_F(ControlPort, ImpossibleTensorsCostTheConnection) {
  const auto with_tensor = [](std::string metadata, size_t announced) {
    tensorpipe::Message::Tensor tensor;
    static std::vector<char> bytes(1 << 16);
    tensor.buffer = tensorpipe::CpuBuffer{bytes.data()};
    tensor.length = announced;
    tensor.metadata = std::move(metadata);
    return tensor;
  };
  const std::string format = detail::TensorFormat{at::kFloat, {4}}.to_bytes();
  std::string payload = detail::join_payload({.kind = detail::MessageKind::kRequest,
                                              .call_id = 1,
                                              .method = "test.echo",
                                              .schema = method_schema(kEcho),
                                              .timeout_ms = 1000},
                                             "");

  // Another length than the shape's, no metadata, too much of it, a negative size.
  for (auto& tensor :
       {with_tensor(format, 12), with_tensor("", 16), with_tensor(std::string(1000, 'm'), 16),
        with_tensor(detail::TensorFormat{at::kFloat, {-4}}.to_bytes(), 16)}) {
    auto peer = raw();
    peer->connect();
    auto message = RawPeer::message(payload);
    message.tensors.push_back(tensor);
    std::thread writer([&] { peer->write(1, message); });
    EXPECT_EQ(peer->receive_farewell(), ErrorCode::kCorrupt);
    writer.join();
  }
}

// Something that listens but does not speak the protocol is an error of connect(), by its deadline.
TEST_F(ControlPort, AForeignServerIsNoPeer) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof any;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&any), size), 0);
  ASSERT_EQ(::listen(listener, 16), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&any), &size);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));

  EXPECT_EQ(code_of([&] { client.connect("teacher/1", address, Deadline::after(200ms)); }),
            ErrorCode::kTimeout)
      << "it is silent";

  // It answers in another protocol.
  std::thread answer([&] {
    for (;;) {
      const int fd = ::accept(listener, nullptr, nullptr);
      if (fd < 0 && errno == EINTR) continue;
      if (fd < 0) return;
      const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
      (void)::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
      ::close(fd);
    }
  });
  const auto code = code_of([&] { client.connect("teacher/1", address, Deadline::after(500ms)); });
  EXPECT_TRUE(code == ErrorCode::kCorrupt || code == ErrorCode::kTimeout) << to_string(code);

  ::shutdown(listener, SHUT_RDWR);
  ::close(listener);
  answer.join();
  EXPECT_EQ(code_of([&] { client.connect("teacher/1", address, Deadline::after(100ms)); }),
            ErrorCode::kTimeout)
      << "nobody listens";
}

}  // namespace
}  // namespace retort::rpc::testing
