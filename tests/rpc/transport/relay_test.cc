// A man in the middle who forwards every byte. Without TLS the two ends see that their addresses
// differ; with TLS he has no key. Either way he gets nothing but bytes that he cannot use.
#include <gtest/gtest.h>

#include <thread>

#include "tests/rpc/transport/echo_pipe.h"
#include "tests/rpc/transport/node.h"
#include "tests/rpc/transport/relay.h"

namespace retort::rpc::transport::testing {
namespace {

class Relayed : public ::testing::Test {
 protected:
  static NodeOptions options(std::string name, bool tls, bool compare) {
    auto made = node_options(std::move(name));
    made.tls = tls;
    made.identity.compare_addresses = compare;
    return made;
  }
};

TEST_F(Relayed, TheAddressesGiveAPlainRelayAway) {
  Node server(options("teacher/0", false, true)), client(options("student/0", false, true));
  Relay relay(server.address());
  const auto result = client.dial(relay.address(), {.name = "teacher/0"});
  EXPECT_EQ(result.refusal, Refusal::kAddress);
  EXPECT_EQ(relay.connections, 1);
  EXPECT_EQ(server.refused(Refusal::kAddress, 1), 1u);
  EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))));
}

TEST_F(Relayed, ADataConnectionOverARelayIsRefusedToo) {
  Node server(options("teacher/0", false, true)), client(options("student/0", false, true));
  const auto session = client.connect("teacher/0", server.address());
  const Proven who = client.session(session);
  Relay relay(server.address());
  const auto result = client.dial(relay.address(), {"teacher/0", Purpose::kData, session, who.key});
  EXPECT_EQ(result.refusal, Refusal::kAddress);
  EXPECT_EQ(server.acceptor->counters().proven_data, 0u);
}

TEST_F(Relayed, UnderTlsARelaySeesOnlyWhatItCannotRead) {
  // As behind an address translator: the relay is let through, and is of no use to itself.
  Node server(options("teacher/0", true, false)), client(options("student/0", true, false));
  Relay relay(server.address());
  const auto result = client.dial(relay.address(), {.name = "teacher/0"});
  EXPECT_EQ(result.refusal, Refusal::kNone);
  client.on_loop([&] { result.stream->close(); });
  const std::string seen = relay.stop();
  EXPECT_FALSE(seen.empty());
  EXPECT_EQ(seen.find("student/0"), std::string::npos);
}

// What the two defences are for: with neither of them a relay reads everything.
TEST_F(Relayed, WithoutTlsAndWithoutComparisonARelayReadsTheData) {
  Node server(options("teacher/0", false, false)), client(options("student/0", false, false));
  Relay relay(server.address());
  const auto session = client.connect("teacher/0", server.address());
  const Proven who = client.session(session);
  const auto port = relay.address().substr(relay.address().rfind(':') + 1);
  client.on_loop([&] { client.sessions->open(who, "127.0.0.1", port); });

  const auto pipe = client.pipe(session);
  auto answer = receive(pipe);
  const auto deadline = soon();
  while (server.acceptor->counters().proven_data == 0 && !deadline.expired())
    std::this_thread::sleep_for(1ms);
  while (server.pipes_served == 0 && !deadline.expired())
    std::this_thread::sleep_for(1ms);
  const std::string seen = relay.stop();
  EXPECT_NE(seen.find("student/0"), std::string::npos);
  EXPECT_NE(seen.find("\xb8\x00\xb9\x01\xbd", 0, 5), std::string::npos)
      << "TensorPipe's first object: a variant's first kind, a structure of one text";
  client.end_session(session);
  EXPECT_TRUE(answer.get()->error);
}

TEST_F(Relayed, TlsAndPlainDoNotMeet) {
  Node server(options("teacher/0", true, true)), plain(options("student/0", false, true));
  EXPECT_NE(plain.dial(server.address(), {.name = "teacher/0"}).refusal, Refusal::kNone);
  auto other = options("student/1", true, true);
  other.identity.credentials[0].secret = "a guess";
  Node liar(other);
  EXPECT_NE(liar.dial(server.address(), {.name = "teacher/0"}).refusal, Refusal::kNone);
  Node client(options("student/2", true, true));
  EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))));
}

}  // namespace
}  // namespace retort::rpc::transport::testing
