// What strangers and liars can do at the published port: cost themselves a connection. Every test
// ends with messages of an honest peer that was connected all the time, and of one that comes new.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include "rpc/transport/tls_stream.h"
#include "tests/rpc/transport/echo_pipe.h"
#include "tests/rpc/transport/log_capture.h"
#include "tests/rpc/transport/node.h"
#include "tests/rpc/transport/raw_stream.h"

namespace retort::rpc::transport::testing {
namespace {

class Strangers : public ::testing::Test {
 protected:
  static NodeOptions server_options() {
    auto options = node_options("teacher/0");
    options.acceptor.max_unproven = 64;
    return options;
  }
  void SetUp() override {
    session = client.connect("teacher/0", server.address());
    pipe = client.pipe(session);
    ASSERT_TRUE(answers(pipe));
  }
  void TearDown() override {
    EXPECT_TRUE(answers(pipe)) << "the old pipe";
    EXPECT_TRUE(answers(client.pipe(session))) << "a new pipe of the old session";
    EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))))
        << "a new session";
  }
  void expect_refused(Refusal refusal, uint64_t count = 1) {
    EXPECT_EQ(server.refused(refusal, count), count) << to_string(refusal);
  }
  const AcceptorCounters& counters() const { return server.acceptor->counters(); }
  Node server{server_options()};
  Node client{node_options("student/0")};
  std::string session;
  std::shared_ptr<tensorpipe::Pipe> pipe;
};

TEST_F(Strangers, GarbageEndsItsConnectionWithoutAnAnswer) {
  uint64_t count = 0;
  for (const std::string& junk :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(1 << 20, '\xff'),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00\x00\x00", 16),
        data_frame(std::string(64, '\xa5')), std::string(16, '\0')}) {
    RawStream stream(server.address());
    stream.send(junk);
    EXPECT_EQ(stream.drain(), "");
    expect_refused(Refusal::kGarbage, ++count);
  }
}

TEST_F(Strangers, AHugeLengthIsNoLength) {
  RawStream stream(server.address());
  stream.send(std::string("\xff\xff\xff\xff\xff\xff\xff\x0f\0\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(stream.drain(), "");

  std::string header = to_bytes(ClientHello{.name = "a", .target = "b"});
  header[14] = header[15] = '\xff';
  RawStream other(server.address());
  other.send(header.substr(0, kProofHeaderBytes));
  EXPECT_EQ(refusal_of(other), Refusal::kFrame);
}

TEST_F(Strangers, SilenceAndHalfAFrameAreCutAtTheDeadline) {
  auto options = node_options("teacher/1");
  options.acceptor.proof_timeout = 100ms;
  const LogCapture log;
  Node impatient(options);
  RawStream silent(impatient.address()), half(impatient.address());
  half.send(to_bytes(ClientHello{.name = "a", .target = "b"}).substr(0, 100));
  EXPECT_EQ(silent.drain(), "");
  EXPECT_EQ(half.drain(), "");
  EXPECT_EQ(impatient.refused(Refusal::kTimeout, 2), 2u);
  EXPECT_TRUE(log.says("refusal=timeout"));
}

TEST_F(Strangers, HalfAFrameThenTheEnd) {
  {
    RawStream stream(server.address());
    stream.send(to_bytes(ClientHello{.name = "a", .target = "b"}).substr(0, 100));
  }
  { RawStream nothing(server.address()); }
  expect_refused(Refusal::kClosed, 2);
}

TEST_F(Strangers, TwoThousandSilentConnections) {
  std::vector<std::unique_ptr<RawStream>> flood;
  for (int i = 0; i < 2000; ++i) {
    flood.push_back(std::make_unique<RawStream>(server.address()));
    if (flood.size() > 400) flood.erase(flood.begin(), flood.begin() + 200);
    const bool look = i % 500 == 250;
    EXPECT_TRUE(!look || answers(client.pipe(session))) << "in the middle of the flood";
  }
  EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))));
  EXPECT_GE(counters().accepted, 2000u);
}

TEST_F(Strangers, EveryWrongClaimHasItsReason) {
  const auto refused = [&](const Identity& identity, ProofTarget target) {
    RawStream stream(server.address());
    ClientRules rules(identity, std::move(target), stream.facts());
    stream.send(rules.hello());
    return refusal_of(stream);
  };
  auto identity = identity_of("student/0");
  EXPECT_EQ(refused(identity, {.name = "teacher/1"}), Refusal::kPeer);
  EXPECT_EQ(refused(identity, {"teacher/0", Purpose::kData, std::string(32, '0'), "key"}),
            Refusal::kSession);
  EXPECT_EQ(refused(identity, {"teacher/0", static_cast<Purpose>(7), "", ""}), Refusal::kPurpose);
  identity.run = "run 8";
  EXPECT_EQ(refused(identity, {.name = "teacher/0"}), Refusal::kRun);
  identity = identity_of("student/0");
  identity.credentials[0].id = "second";
  EXPECT_EQ(refused(identity, {.name = "teacher/0"}), Refusal::kCredential);
}

TEST_F(Strangers, AGuessedSecretIsRefused) {
  auto identity = identity_of("student/0");
  identity.credentials[0].secret = "a guess";
  RawStream stream(server.address());
  EXPECT_FALSE(prove(stream, identity, {.name = "teacher/0"}));
  expect_refused(Refusal::kProof);
}

TEST_F(Strangers, AReplayedProofIsRefused) {
  RawStream honest(server.address());
  const auto identity = identity_of("student/0");
  ClientRules rules(identity, {.name = "teacher/0"}, honest.facts());
  honest.send(rules.hello());
  const auto answer = honest.receive(kProofHeaderBytes + body_bytes(ProofFrame::kServerHello));
  const std::string proof = rules.on_server_hello(answer->substr(kProofHeaderBytes)).send;
  honest.send(proof);
  ASSERT_TRUE(honest.receive(kProofHeaderBytes + body_bytes(ProofFrame::kVerdict)));

  // From another port its addresses do not fit either; that is looked at first.
  RawStream again(server.address());
  again.send(rules.hello() + proof);
  EXPECT_EQ(refusal_of(again), Refusal::kAddress);
}

TEST_F(Strangers, ADataConnectionNeedsTheKeyOfItsSession) {
  // Somebody who knows the run's secret, but not this session's key: another peer of the run.
  const auto identity = identity_of("student/0");
  RawStream guess(server.address());
  EXPECT_FALSE(
      prove(guess, identity, {"teacher/0", Purpose::kData, session, "the secret of these tests"}));
  expect_refused(Refusal::kProof);

  // Another peer that even knows the key of a session that is not its own.
  RawStream other(server.address());
  EXPECT_FALSE(prove(other, identity_of("student/1"),
                     {"teacher/0", Purpose::kData, session, client.session(session).key}));
  expect_refused(Refusal::kPeer);
}

// TensorPipe's channel connections name a registration of their pipe, 0, 1, 2, ... A peer of
// another session that asks for these numbers meets its own session's listener alone.
TEST_F(Strangers, ChannelConnectionsOfAnotherSessionCannotBeTaken) {
  Node liar{node_options("student/1")};
  const auto own = liar.connect("teacher/0", server.address());
  const Proven who = liar.session(own);
  std::vector<std::unique_ptr<RawStream>> connections;
  for (uint64_t number = 0; number < 6; ++number) {
    connections.push_back(std::make_unique<RawStream>(server.address()));
    ASSERT_TRUE(prove(*connections.back(), liar.options.identity,
                      {"teacher/0", Purpose::kData, own, who.key}));
    // A variant's second kind, a structure of one member: as relay_test.cc sees the first kind.
    std::string object("\xb8\x01\xb9\x01", 4);
    object += static_cast<char>(number);
    connections.back()->send(data_frame(object));
  }
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(answers(client.pipe(session)));
}

TEST_F(Strangers, AProvenPeerWithBadFramesHarmsItsOwnSessionAlone) {
  Node liar{node_options("student/1")};
  const auto own = liar.connect("teacher/0", server.address());
  const Proven who = liar.session(own);
  for (const std::string& bytes :
       {std::string(), std::string("\0\0\0\0", 4), data_frame(""), data_frame("\xa5\xa5\xa5"),
        data_frame(std::string(100'000, '\xa5')), std::string("\xff\xff\xff\xff\xff\xff\xff\x7f"),
        data_frame(std::string(4000, '\xa5'))}) {
    RawStream stream(server.address());
    ASSERT_TRUE(prove(stream, liar.options.identity, {"teacher/0", Purpose::kData, own, who.key}));
    stream.send(bytes);
    ::shutdown(stream.fd(), SHUT_WR);
    EXPECT_EQ(stream.drain(), "");
  }
  EXPECT_TRUE(answers(liar.pipe(own))) << "not even that: the listener lives";
}

// Under TLS: the first bytes are looked at before OpenSSL sees any of them.
class TlsStrangers : public ::testing::Test {
 protected:
  static NodeOptions with_tls(std::string name) {
    auto options = node_options(std::move(name));
    options.tls = true;
    return options;
  }
  void TearDown() override {
    EXPECT_TRUE(answers(client.pipe(client.connect("teacher/0", server.address()))));
  }
  // A record that says that it holds a handshake message of this type and length.
  static std::string record(size_t bytes, char type, size_t message) {
    std::string head("\x16\x03\x01", 3);
    head += {static_cast<char>(bytes >> 8), static_cast<char>(bytes), type};
    head += {static_cast<char>(message >> 16), static_cast<char>(message >> 8),
             static_cast<char>(message)};
    return head;
  }
  Node server{with_tls("teacher/0")};
  Node client{with_tls("student/0")};
};

TEST_F(TlsStrangers, WhatIsNoClientHelloEndsWithItsFirstBytes) {
  uint64_t count = 0;
  for (const std::string& junk :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(1 << 20, '\xff'),
        to_bytes(ClientHello{.name = "a", .target = "b"}), record(300, 2, 296),
        record(kMaxClientHelloBytes + 1, 1, kMaxClientHelloBytes - 3), record(300, 1, 0xffffff),
        record(0, 1, 0)}) {
    RawStream stream(server.address());
    stream.send(junk);
    EXPECT_EQ(stream.drain(), "");
    EXPECT_EQ(server.refused(Refusal::kClosed, ++count), count);
  }
}

TEST_F(TlsStrangers, HalfAClientHelloIsWaitedForAndNobodyWithIt) {
  auto options = with_tls("teacher/1");
  options.acceptor.proof_timeout = 300ms;
  Node impatient(options);
  RawStream half(impatient.address()), bytes(impatient.address());
  half.send(record(300, 1, 296) + std::string(100, 'x'));
  for (const char byte : record(300, 1, 296))
    bytes.send(std::string(1, byte));
  EXPECT_EQ(half.drain(), "");
  EXPECT_EQ(bytes.drain(), "");
  EXPECT_EQ(impatient.refused(Refusal::kTimeout, 2), 2u);
}

TEST_F(TlsStrangers, AClientHelloWithoutTheSecretIsItsLast) {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  RawStream stream(server.address());
  SSL* const ssl = SSL_new(context);
  SSL_set_fd(ssl, stream.fd());
  EXPECT_LE(SSL_connect(ssl), 0);
  EXPECT_EQ(server.refused(Refusal::kClosed, 1), 1u);
  SSL_free(ssl);
  SSL_CTX_free(context);
}

}  // namespace
}  // namespace retort::rpc::transport::testing
