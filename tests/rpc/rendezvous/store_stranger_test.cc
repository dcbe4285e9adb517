// Who cannot use the run's store, and what a liar costs: his own connection. And how a client
// finds a server that is late, silent or absent.
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <thread>

#include "rpc/launcher_port/frame_connection.h"
#include "rpc/launcher_port/store_identity.h"
#include "rpc/transport/tls_context.h"
#include "tests/rpc/failing_new.h"
#include "tests/rpc/rendezvous/store_fixture.h"
#include "tests/rpc/transport/log_capture.h"
#include "tests/rpc/transport/raw_stream.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::rpc::rendezvous::testing {
namespace {

using transport::Identity;
using transport::testing::RawStream;

// A session with another identity than this run's.
Error refusal_of(const StoreServer& server, const Identity& identity,
                 transport::StreamFactory factory = transport::StreamFactory(),
                 Deadline deadline = soon()) {
  return test::error_of(
      [&] { StoreSession(identity, std::move(factory), "127.0.0.1", server.port(), deadline); });
}

ErrorCode patient_refusal_of(const StoreServer& server, const Identity& identity) {
  return refusal_of(server, identity, transport::StreamFactory(), Deadline::after(200ms)).code();
}

transport::StreamFactory tls_with(const Identity& identity) {
  return transport::StreamFactory(std::make_shared<transport::TlsContext>(identity.credentials));
}

// Every test ends with a client that was connected all the time, and with a new one.
class Strangers : public ::testing::Test {
 protected:
  void SetUp() override { store->set("secret", bytes("value")); }
  void TearDown() override {
    EXPECT_EQ(text(store->get("secret")), "value");
    EXPECT_EQ(text(connect(server->port())->get("secret")), "value");
    EXPECT_EQ(store->getNumKeys(), 1);
  }
  std::string address() const { return server->addresses().front(); }

  const std::unique_ptr<StoreServer> server = make_server();
  const StorePtr store = connect(server->port());
};

// Tells the reason after it has tried for a while: another may have the port by then.
TEST_F(Strangers, AWrongSecretIsRefused) {
  Identity stranger = identity_of("student/0");
  stranger.credentials[0].secret = "a guess";
  EXPECT_EQ(patient_refusal_of(*server, stranger), ErrorCode::kUnauthenticated);
  stranger.credentials[0] = {"another", "the secret of these tests"};
  EXPECT_EQ(patient_refusal_of(*server, stranger), ErrorCode::kUnauthenticated);
}

TEST_F(Strangers, AnotherRunOrProgramIsRefused) {
  Identity stranger = identity_of("student/0");
  stranger.run = "run 8";
  EXPECT_EQ(patient_refusal_of(*server, stranger), ErrorCode::kUnauthenticated);
  stranger = identity_of("student/0");
  stranger.schema = "retort store 0";
  EXPECT_EQ(refusal_of(*server, stranger).code(), ErrorCode::kMismatch);
}

TEST_F(Strangers, NothingIsReadBeforeTheProof) {
  const StoreRequest set{
      .id = 1, .op = StoreOp::kSet, .keys = {"secret"}, .values = {"of a stranger"}};
  for (const std::string& junk :
       {frame_of(set), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\xff')}) {
    RawStream stream(address());
    stream.send(junk);
    EXPECT_EQ(stream.drain(), "");
  }
}

TEST_F(Strangers, DataConnectionsAreNotTaken) {
  RawStream stream(address());
  EXPECT_FALSE(transport::testing::prove(
      stream, identity_of("student/0"),
      {launcher_port::kStoreName, transport::Purpose::kData, "session", std::string(32, 'k')}));
}

TEST_F(Strangers, AProvenLiarLosesHisConnection) {
  const auto with_head = [](uint32_t length, const std::string& content) {
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + content;
  };
  std::string unknown_operation = to_bytes(StoreRequest{.id = 1});
  unknown_operation[sizeof(uint64_t)] = 99;
  std::string huge_count = to_bytes(StoreRequest{.id = 1});
  huge_count.replace(sizeof(uint64_t) + 1, sizeof(uint64_t), sizeof(uint64_t), '\xff');

  for (const std::string& lie :
       {with_head(0, ""), with_head(0xffff'ffff, ""), with_head((32 << 20) + 1, ""),
        with_head(5, "12345"), launcher_port::with_length(unknown_operation),
        launcher_port::with_length(huge_count),
        launcher_port::with_length(to_bytes(StoreRequest{.id = 1}) + "left over")}) {
    RawStream stream(address());
    ASSERT_TRUE(transport::testing::prove(stream, identity_of("student/1"),
                                          {.name = launcher_port::kStoreName}));
    stream.send(lie);
    EXPECT_EQ(stream.drain(), "");
  }
  EXPECT_TRUE(test::wait_until([&] { return server->stats().connections == 1; }));
}

// Hellos need no secret to be said, but to be listened to.
TEST_F(Strangers, AFloodOfHellosKeepsNobodyOut) {
  StoreServerOptions options = server_options();
  options.acceptor.max_unproven = 32;
  const auto small = make_server(kPlain, options);
  Identity guesser = identity_of("student/7");
  guesser.credentials[0].secret = "a guess";
  std::atomic<bool> over{false};
  std::thread flood([&] {
    std::deque<RawStream> strangers;
    while (!over) {
      strangers.emplace_back(small->addresses().front());
      RawStream& stream = strangers.back();
      stream.send(
          transport::ClientRules(guesser, {.name = launcher_port::kStoreName}, stream.facts())
              .hello());
      if (strangers.size() > 200) strangers.pop_front();
      std::this_thread::sleep_for(1ms);  // so that the system has ports for a whole test
    }
  });
  const transport::AcceptorCounters& counters = small->counters();
  EXPECT_TRUE(test::wait_until([&] { return counters.of(transport::Refusal::kProof) > 64; }));
  for (int i = 0; i < 10; ++i)
    connect(small->port(), kPlain, 20s)->set("key", bytes("1"));
  over = true;
  flood.join();
  EXPECT_EQ(counters.evicted(), 0u);
}

// Within the limits, and more than there is: a proven peer's frame of 20 MiB.
TEST_F(Strangers, AFrameThereIsNoMemoryForCostsItsConnection) {
  RawStream stream(address());
  ASSERT_TRUE(transport::testing::prove(stream, identity_of("student/1"),
                                        {.name = launcher_port::kStoreName}));
  const rpc::testing::FailingNew failing(16 << 20);
  const uint32_t length = 20 << 20;
  stream.send(std::string(reinterpret_cast<const char*>(&length), sizeof length));
  EXPECT_EQ(stream.drain(), "");
}

TEST_F(Strangers, HalfAFrameHoldsUpNobody) {
  RawStream stream(address());
  ASSERT_TRUE(transport::testing::prove(stream, identity_of("student/1"),
                                        {.name = launcher_port::kStoreName}));
  stream.send(frame_of(StoreRequest{.id = 1}).substr(0, 9));
  EXPECT_TRUE(store->check({"secret"}));
}

TEST(EncryptedStore, TakesNeitherPlainConnectionsNorAnotherSecret) {
  const auto server = make_server(kTls);
  const StorePtr store = connect(server->port(), kTls);
  Identity stranger = identity_of("student/0");
  (void)refusal_of(*server, stranger, streams(kPlain), Deadline::after(200ms));
  // The server closes without a word, as one that starts may, so the client tries until the end.
  stranger.credentials[0].secret = "a guess";
  EXPECT_EQ(refusal_of(*server, stranger, tls_with(stranger), Deadline::after(200ms)).code(),
            ErrorCode::kTimeout);
  store->set("key", bytes("1"));
  EXPECT_EQ(server->stats().connections, 1u);
}

TEST(Connecting, WaitsForAServerThatIsLate) {
  const uint16_t port = make_server()->port();
  std::thread client([&] { connect(port)->set("late", bytes("1")); });
  const auto server = make_server(kPlain, server_options(port));
  EXPECT_EQ(text(connect(port)->get("late")), "1");
  client.join();
}

// A process of another run has the port that this run's store takes a moment later.
TEST(Connecting, WhoeverHadThePortBeforeIsNoReasonToGiveUp) {
  transport::testing::LogCapture log;
  Identity other = identity_of(launcher_port::kStoreName);
  other.run = "run 6";
  auto squatter = std::make_unique<StoreServer>(other, streams(kPlain), server_options());
  const uint16_t port = squatter->port();
  std::thread client([&] { connect(port)->set("late", bytes("1")); });
  EXPECT_TRUE(
      test::wait_until([&] { return squatter->counters().of(transport::Refusal::kRun) > 1; }));
  squatter.reset();
  const auto server = make_server(kPlain, server_options(port));
  client.join();
  EXPECT_EQ(text(connect(port)->get("late")), "1");
  EXPECT_TRUE(log.says("is not the store of this run"));
}

TEST(Connecting, NobodyThereIsATimeoutThatNamesTheAddress) {
  const uint16_t port = make_server()->port();
  test::expect_error(ErrorCode::kTimeout, "127.0.0.1:" + std::to_string(port), [&] {
    StoreSession(identity_of("student/0"), streams(kPlain), "127.0.0.1", port,
                 Deadline::after(100ms));
  });
}

TEST(Connecting, ASilentServerIsATimeout) {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor silent(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
  EXPECT_EQ(test::code_of([&] {
              StoreSession(identity_of("student/0"), streams(kPlain), "127.0.0.1",
                           silent.local_endpoint().port(), Deadline::after(100ms));
            }),
            ErrorCode::kTimeout);
}

}  // namespace
}  // namespace retort::rpc::rendezvous::testing
