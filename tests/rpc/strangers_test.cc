// Strangers at an agent's port, and between two agents: what they try costs them a connection, the
// peers go on, and the log says what was refused. The transport's own tests look closer
// (transport/stranger_test.cc, relay_test.cc, proof_test.cc); docs/security.md has the table.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

#include "rpc/detail/wire_schema.h"
#include "tests/rpc/echo.h"
#include "tests/rpc/transport/log_capture.h"
#include "tests/rpc/transport/raw_stream.h"
#include "tests/rpc/transport/relay.h"

namespace retort::rpc::testing {
namespace {

using transport::ClientRules;
using transport::Identity;
using transport::ProofFrame;
using transport::ProofTarget;
using transport::Purpose;
using transport::Refusal;
using transport::testing::LogCapture;
using transport::testing::RawStream;
using transport::testing::Relay;

// Every test ends with a call of a peer that was connected all the time, and of one that comes new.
class AgentStrangers : public ::testing::Test {
 protected:
  void SetUp() override {
    serve_echo(server, handlers.queue);
    client.connect("teacher/0", server.address(), soon());
  }
  void TearDown() override {
    EXPECT_TRUE(answers(client)) << "the old peer";
    Agent late(agent_options("late/0"));
    late.connect("teacher/0", server.address(), soon());
    EXPECT_TRUE(answers(late)) << "a new one";
  }
  static bool answers(Agent& agent) {
    const auto reply =
        agent.call("teacher/0", kEcho, {.text = "real", .tensors = {at::ones({30000})}})
            .get(soon());
    return reply.text == "real" && reply.tensors.at(0).numel() == 30000;
  }

  // As an agent of this run proves itself.
  static Identity identity(std::string secret = kSecret) {
    return {.name = "student/9",
            .schema = detail::wire_schema(),
            .credentials = {{"run", std::move(secret)}}};
  }
  // All that an honest proof of a control connection sends.
  std::string recorded_proof() {
    RawStream honest(server.address());
    const Identity own = identity();
    ClientRules rules(own, {.name = "teacher/0"}, honest.facts());
    honest.send(rules.hello());
    const auto answer = honest.receive(transport::kProofHeaderBytes +
                                       transport::body_bytes(ProofFrame::kServerHello));
    const std::string proof =
        rules.on_server_hello(answer->substr(transport::kProofHeaderBytes)).send;
    honest.send(proof);
    EXPECT_TRUE(
        honest.receive(transport::kProofHeaderBytes + transport::body_bytes(ProofFrame::kVerdict)))
        << "it was good for once";
    return rules.hello() + proof;
  }
  void send_and_drain(std::string_view bytes) {
    RawStream stream(server.address());
    stream.send(bytes);
    stream.drain();
  }

  HandlerThread handlers;
  Agent server{agent_options("teacher/0")};
  Agent client{agent_options("student/0")};
};

// What somebody can do who writes his own address where the student looks for the teacher's.
TEST_F(AgentStrangers, ASwappedAddressLeadsToNobody) {
  Relay relay(server.address());
  Agent misled(agent_options("student/1"));
  const Error error = test::error_of(
      [&] { misled.connect("teacher/0", relay.address(), soon(), Agent::Attempts::kOnce); });
  EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated) << error.what();
  EXPECT_EQ(relay.connections, 1) << "he forwarded a whole handshake";
  EXPECT_TRUE(misled.peers().empty());
  EXPECT_EQ(server.peers(), std::vector<std::string>{"student/0"});

  misled.connect("teacher/0", server.address(), soon());
  EXPECT_TRUE(answers(misled)) << "the right address serves it still";
}

TEST_F(AgentStrangers, AReplayedProofOpensNothing) {
  const std::string proof = recorded_proof();
  RawStream again(server.address());
  again.send(proof);
  EXPECT_EQ(transport::testing::refusal_of(again), Refusal::kAddress);
  EXPECT_EQ(server.peers(), std::vector<std::string>{"student/0"});
}

// Channel connections of TensorPipe's own listener could be taken by their number. Here a data
// connection names its session and proves that session's key.
TEST_F(AgentStrangers, AConnectionForTensorsIsNotTakenWithoutASession) {
  RawStream stream(server.address());
  const Identity own = identity();
  ClientRules rules(own, {"teacher/0", Purpose::kData, std::string(32, '0'), "key"},
                    stream.facts());
  stream.send(rules.hello());
  EXPECT_EQ(transport::testing::refusal_of(stream), Refusal::kSession);
}

TEST_F(AgentStrangers, TwoThousandSilentConnections) {
  std::deque<RawStream> flood;
  for (int i = 0; i < 2000; ++i) {
    flood.emplace_back(server.address());
    if (flood.size() > 400) flood.pop_front();
    const bool look = i % 500 == 250;
    EXPECT_TRUE(!look || answers(client)) << "in the middle of the flood";
  }
  Agent among(agent_options("student/1"));
  among.connect("teacher/0", server.address(), soon());
  EXPECT_TRUE(answers(among));
}

TEST_F(AgentStrangers, AFloodOfHellosKeepsNobodyOut) {
  const Identity guesser = identity("a guess");
  std::atomic<bool> over{false};
  std::thread flooding([&] {
    std::deque<RawStream> strangers;
    while (!over) {
      strangers.emplace_back(server.address());
      RawStream& stream = strangers.back();
      stream.send(ClientRules(guesser, {.name = "teacher/0"}, stream.facts()).hello());
      if (strangers.size() > 400) strangers.pop_front();
      std::this_thread::sleep_for(1ms);  // so that the system has ports for a whole test
    }
  });
  const auto start = Deadline::Clock::now();
  for (int i = 1; i <= 8; ++i) {
    Agent late(agent_options("student/" + std::to_string(i)));
    late.connect("teacher/0", server.address(), soon());
    EXPECT_TRUE(answers(late));
  }
  const auto took = Deadline::Clock::now() - start;
  EXPECT_TRUE(answers(client)) << "in the middle of the flood";
  over = true;
  flooding.join();
  EXPECT_LT(took, 20s) << "eight agents, one after the other";
}

TEST_F(AgentStrangers, AnotherRunOfTheSameSecretIsAStranger) {
  auto options = agent_options("teacher/0");
  options.run = "run 7";
  Agent ours(options);
  serve_echo(ours, handlers.queue);
  options.name = "student/0";
  options.run = "run 8";
  Agent theirs(options);
  const Error error = test::error_of([&] { theirs.connect("teacher/0", ours.address(), soon()); });
  EXPECT_EQ(error.code(), ErrorCode::kUnauthenticated) << error.what();
  EXPECT_NE(std::string(error.what()).find("refusal=run"), std::string::npos) << error.what();

  options.run = "run 7";
  Agent of_ours(options);
  of_ours.connect("teacher/0", ours.address(), soon());
  EXPECT_TRUE(answers(of_ours));
}

TEST_F(AgentStrangers, TheLogSaysWhatWasRefused) {
  const LogCapture log;
  send_and_drain("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(log.says("refusal=garbage"));

  // The length of a frame that would be 4 GiB long.
  const Identity own = identity();
  std::string header = ClientRules(own, {.name = "teacher/0"}, {}).hello();
  header.resize(transport::kProofHeaderBytes);
  header.replace(header.size() - 4, 4, 4, '\xff');
  send_and_drain(header);
  EXPECT_TRUE(log.says("refusal=frame"));

  RawStream guess(server.address());
  EXPECT_FALSE(
      transport::testing::prove(guess, identity("a guess"), ProofTarget{.name = "teacher/0"}));
  EXPECT_TRUE(log.says("refusal=proof"));

  send_and_drain(recorded_proof());
  EXPECT_TRUE(log.says("refusal=address"));

  { RawStream nothing(server.address()); }
  EXPECT_TRUE(log.says("refusal=closed"));

  std::deque<RawStream> flood;
  for (int i = 0; i < 300; ++i)
    flood.emplace_back(server.address());
  EXPECT_TRUE(log.says("refusal=evicted"));
}

}  // namespace
}  // namespace retort::rpc::testing
