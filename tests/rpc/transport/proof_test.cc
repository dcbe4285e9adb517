// The rules of the proof, without sockets: what is accepted, and the reason for everything that is
// not.
#include "rpc/transport/proof.h"

#include <gtest/gtest.h>

#include "rpc/transport/key_schedule.h"
#include "tests/rpc/transport/node.h"

namespace retort::rpc::transport::testing {
namespace {

Stream::Endpoint endpoint(const char* host, uint16_t port) {
  return {boost::asio::ip::make_address(host), port};
}

// One exchange; every step can be changed by a test.
class Proofs : public ::testing::Test {
 protected:
  const Stream::Endpoint near = endpoint("10.0.0.1", 40'000), far = endpoint("10.0.0.2", 5'000);
  Identity student = identity_of("student/0"), teacher = identity_of("teacher/0");
  ConnectionFacts client_facts{near, far, ""}, server_facts{far, near, ""};
  ProofTarget target{.name = "teacher/0"};
  NonceMemory nonces;
  ServerPolicy policy{.nonces = &nonces};

  static std::string body(const std::string& frame) { return frame.substr(kProofHeaderBytes); }

  struct Result {
    Refusal server = Refusal::kNone, client = Refusal::kNone;
    std::string hello, proof;
    Proven at_client, at_server;
    Error error = refusal_error(Refusal::kNone);
    bool told = false;  // the server's verdict says more than nothing
  };
  // `tamper` may change a frame on its way: 0 hello, 1 answer, 2 proof, 3 verdict.
  Result run(const std::function<void(int, std::string&)>& tamper = [](int, std::string&) {}) {
    Result result;
    ClientRules client(student, target, client_facts);
    ServerRules server(teacher, policy, server_facts);
    const auto verdict = [&](const std::string& frame) {
      Verdict parsed;
      EXPECT_TRUE(parse(body(frame), parsed));
      result.told = parsed.schema != std::string(32, '\0');
      result.client = client.on_verdict(body(frame));
      result.error = client.error();
    };

    result.hello = body(client.hello());
    tamper(0, result.hello);
    ProofStep answer = server.on_client_hello(result.hello);
    result.server = answer.refusal;
    if (answer.refusal != Refusal::kNone) {
      verdict(answer.send);
      return result;
    }

    std::string reply = body(answer.send);
    tamper(1, reply);
    ProofStep proof = client.on_server_hello(reply);
    result.client = proof.refusal;
    result.error = client.error();
    if (proof.refusal != Refusal::kNone) return result;

    result.proof = body(proof.send);
    tamper(2, result.proof);
    answer = server.on_client_proof(result.proof);
    result.server = answer.refusal;
    tamper(3, answer.send);
    verdict(answer.send);
    if (result.server == Refusal::kNone) result.at_server = server.proven();
    if (result.client == Refusal::kNone) result.at_client = client.proven();
    return result;
  }
};

TEST_F(Proofs, BothSidesEndWithTheSameSecretsAndTheirPeersName) {
  const Result result = run();
  ASSERT_EQ(result.server, Refusal::kNone);
  ASSERT_EQ(result.client, Refusal::kNone);
  EXPECT_EQ(result.at_client.peer, "teacher/0");
  EXPECT_EQ(result.at_server.peer, "student/0");
  EXPECT_EQ(result.at_server.credential, "first");
  EXPECT_EQ(result.at_client.session, result.at_server.session);
  EXPECT_EQ(result.at_client.session.size(), 32u);
  EXPECT_EQ(result.at_client.key, result.at_server.key);
  EXPECT_EQ(result.at_client.key.size(), kKeyBytes);
  EXPECT_NE(run().at_client.key, result.at_client.key) << "every session has its own";
}

TEST_F(Proofs, TheKeyDerivationIsRfc5869) {
  // HMAC(HMAC(salt, secret), label | 1), from Python's hmac module.
  EXPECT_EQ(to_hex(derive_key("secret", "salt", "label")),
            "2ac4369f525996f8de13731f56224f34df0e4c96caa93bfdeccf237b5039c8db");
}

TEST_F(Proofs, AnotherSecretIsRefusedAndLearnsNothing) {
  student.credentials[0].secret = "a guess";
  student.schema = "schema 2";
  const Result result = run();
  EXPECT_EQ(result.server, Refusal::kProof);
  EXPECT_EQ(result.client, Refusal::kProof);
  EXPECT_EQ(result.error.code(), ErrorCode::kUnauthenticated);
  EXPECT_FALSE(result.told) << "not even that the programs differ";
}

TEST_F(Proofs, AnotherProgramIsToldToAPeerThatKnowsTheSecret) {
  student.schema = "schema 2";
  const Result result = run();
  EXPECT_EQ(result.server, Refusal::kSchema);
  EXPECT_EQ(result.client, Refusal::kSchema);
  EXPECT_TRUE(result.told);
  EXPECT_EQ(result.error.code(), ErrorCode::kMismatch);
  EXPECT_NE(std::string(result.error.what()).find("proven=yes"), std::string::npos);
}

TEST_F(Proofs, AnUnknownCredentialAnotherRunAnotherNameAreEachTheirOwnReason) {
  student.credentials[0].id = "second";
  EXPECT_EQ(run().server, Refusal::kCredential);
  student = identity_of("student/0");
  student.run = "run 8";
  EXPECT_EQ(run().server, Refusal::kRun);
  student = identity_of("student/0");
  target.name = "teacher/1";
  EXPECT_EQ(run().server, Refusal::kPeer);
}

TEST_F(Proofs, AnOldSecretIsAcceptedWhileTheServerKnowsIt) {
  teacher.credentials = {{"second", "a newer secret"}, teacher.credentials[0]};
  const Result result = run();
  EXPECT_EQ(result.client, Refusal::kNone);
  EXPECT_EQ(result.at_server.credential, "first");
}

TEST_F(Proofs, ARelayIsSeenByItsAddresses) {
  // The client talks to 10.0.0.9, which forwards every byte to the server.
  client_facts.remote = endpoint("10.0.0.9", 5'000);
  server_facts.remote = endpoint("10.0.0.9", 41'000);
  EXPECT_EQ(run().server, Refusal::kAddress);

  // A relay that mends the client's view breaks the MAC of its hello.
  const auto mend = [&](int step, std::string& frame) {
    if (step != 0) return;
    ClientHello hello;
    ASSERT_TRUE(parse(frame, hello));
    hello.local = address_bytes(server_facts.remote);
    hello.remote = address_bytes(server_facts.local);
    frame = body(to_bytes(hello));
  };
  EXPECT_EQ(run(mend).server, Refusal::kProof);

  // A server that is told to compare nothing does not make the client believe it.
  teacher.compare_addresses = false;
  EXPECT_EQ(run().client, Refusal::kAddress) << "the server's view tells the client";
  const auto mend_answer = [&](int step, std::string& frame) {
    if (step != 1) return;
    ServerHello hello;
    ASSERT_TRUE(parse(frame, hello));
    hello.local = address_bytes(client_facts.remote);
    hello.remote = address_bytes(client_facts.local);
    frame = body(to_bytes(hello));
  };
  EXPECT_EQ(run(mend_answer).server, Refusal::kProof);
}

TEST_F(Proofs, AHelloNeedsTheSecret) {
  const std::string heard = run().hello;
  student.credentials[0].secret = "a guess";
  EXPECT_TRUE(run().proof.empty()) << "it was refused before it could prove anything";

  // Nor does one do that was heard, with a nonce of one's own.
  ClientHello hello;
  ASSERT_TRUE(parse(heard, hello));
  hello.nonce = std::string(32, 'n');
  ServerRules server(teacher, policy, server_facts);
  EXPECT_EQ(server.on_client_hello(body(to_bytes(hello))).refusal, Refusal::kProof);
}

// Strangers cannot make a server forget which hellos it has heard.
TEST_F(Proofs, RefusedHellosAreNotRemembered) {
  const Result honest = run();
  for (int i = 0; i < 5000; ++i) {
    ClientHello hello;
    ASSERT_TRUE(parse(honest.hello, hello));
    hello.nonce = random_nonce();
    ServerRules server(teacher, policy, server_facts);
    ASSERT_EQ(server.on_client_hello(body(to_bytes(hello))).refusal, Refusal::kProof);
  }
  ServerRules server(teacher, policy, server_facts);
  EXPECT_EQ(server.on_client_hello(honest.hello).refusal, Refusal::kReplay);
}

TEST_F(Proofs, TwoRunsOfOneSecretAreStrangers) {
  EXPECT_NE(run_key("the secret", "run 7"), run_key("the secret", "run 8"));
  student.run = "run 8";
  EXPECT_EQ(run().server, Refusal::kRun);

  // Also to somebody in between who says that it is the other run.
  const auto rename = [&](int step, std::string& frame) {
    if (step != 0) return;
    ClientHello hello;
    ASSERT_TRUE(parse(frame, hello));
    hello.run = sha256_raw(teacher.run);
    frame = body(to_bytes(hello));
  };
  EXPECT_EQ(run(rename).server, Refusal::kProof);
}

TEST_F(Proofs, WhoHasNotBeenToldTheRunComesByItsMeeting) {
  student.run = "joined";
  EXPECT_EQ(run().server, Refusal::kRun);
  teacher.meeting = "joined";
  EXPECT_EQ(run().client, Refusal::kNone);
  target.purpose = Purpose::kSupervision;
  policy.supervision = true;
  EXPECT_EQ(run().server, Refusal::kPurpose) << "whoever is supervised knows the run";
  student.run = teacher.run;
  EXPECT_EQ(run().client, Refusal::kNone);
}

TEST_F(Proofs, AMismatchThatNobodySignedIsNone) {
  for (const Refusal hint : {Refusal::kSchema, Refusal::kVersion}) {
    const auto lie = [&](int step, std::string& frame) {
      if (step == 3) frame = to_bytes(Verdict{.refusal = hint});
    };
    const Result result = run(lie);
    EXPECT_EQ(result.client, hint);
    EXPECT_EQ(result.error.code(), ErrorCode::kUnauthenticated)
        << "whoever has the port may say so";
  }
  EXPECT_EQ(unproven_error(Refusal::kVersion).code(), ErrorCode::kUnauthenticated);
}

TEST_F(Proofs, AddressTranslationNeedsLeave) {
  server_facts.remote = endpoint("192.168.1.1", 41'000);
  EXPECT_EQ(run().server, Refusal::kAddress);
  teacher.compare_addresses = false;
  EXPECT_EQ(run().client, Refusal::kAddress);
  student.compare_addresses = false;
  EXPECT_EQ(run().client, Refusal::kNone);

  // Under TLS a relay has another channel on each side.
  client_facts.channel_binding = std::string(32, 'a');
  server_facts.channel_binding = std::string(32, 'b');
  EXPECT_EQ(run().server, Refusal::kProof);
}

TEST_F(Proofs, Ipv4AndItsMappedFormAreOneAddress) {
  server_facts.local = endpoint("::ffff:10.0.0.2", 5'000);
  server_facts.remote = endpoint("::ffff:10.0.0.1", 40'000);
  EXPECT_EQ(run().client, Refusal::kNone);
}

TEST_F(Proofs, AReplayedExchangeIsRefusedAsSuch) {
  const Result honest = run();
  ServerRules server(teacher, policy, server_facts);
  EXPECT_EQ(server.on_client_hello(honest.hello).refusal, Refusal::kReplay);
}

TEST_F(Proofs, AReplayedProofDoesNotFitTheServersNonce) {
  const Result honest = run();
  policy.nonces = nullptr;  // a server that was started anew
  ServerRules server(teacher, policy, server_facts);
  ASSERT_EQ(server.on_client_hello(honest.hello).refusal, Refusal::kNone);
  EXPECT_EQ(server.on_client_proof(honest.proof).refusal, Refusal::kProof);
}

TEST_F(Proofs, EchoesAreRefused) {
  student.name = "teacher/0";
  EXPECT_EQ(run().server, Refusal::kReflection);
  student.name = "student/0";

  const auto echo_nonce = [&](int step, std::string& frame) {
    static std::string nonce;
    ClientHello hello;
    ServerHello answer;
    if (step == 0 && parse(frame, hello)) nonce = hello.nonce;
    if (step != 1) return;
    ASSERT_TRUE(parse(frame, answer));
    answer.nonce = nonce;
    frame = body(to_bytes(answer));
  };
  EXPECT_EQ(run(echo_nonce).client, Refusal::kReflection);

  const auto echo_mac = [&](int step, std::string& frame) {
    static ClientProof proof;
    if (step == 2) parse(frame, proof);
    if (step == 3)
      frame =
          to_bytes(Verdict{.refusal = Refusal::kNone, .mac = proof.mac, .schema = proof.schema});
  };
  EXPECT_EQ(run(echo_mac).client, Refusal::kReflection);
}

TEST_F(Proofs, AServerThatDoesNotKnowTheSecretIsNotBelieved) {
  const auto lie = [](int step, std::string& frame) {
    if (step == 3)
      frame = to_bytes(Verdict{.mac = std::string(32, 'm'), .schema = std::string(32, 's')});
  };
  EXPECT_EQ(run(lie).client, Refusal::kProof);
}

TEST_F(Proofs, EveryByteIsCovered) {
  // A changed bit in any byte of any frame is refused by one side at least.
  for (int step = 0; step < 4; ++step)
    for (size_t at = 0; at < 1000; ++at) {
      bool changed = false;
      const Result result = run([&](int now, std::string& frame) {
        const size_t header = now == 3 ? kProofHeaderBytes : 0;
        if (now != step || header + at >= frame.size()) return;
        frame[header + at] = static_cast<char>(frame[header + at] ^ 1);
        changed = true;
      });
      if (!changed) break;
      EXPECT_NE(result.client, Refusal::kNone) << "frame " << step << " byte " << at;
    }
}

TEST_F(Proofs, DataConnectionsProveTheKeyOfTheirSession) {
  const Proven session = run().at_server;
  policy.find_session = [&](const std::string& id) -> std::optional<SessionKey> {
    if (id != session.session) return std::nullopt;
    return SessionKey{session.key, "student/0"};
  };
  target = {"teacher/0", Purpose::kData, session.session, session.key};
  const Result result = run();
  ASSERT_EQ(result.client, Refusal::kNone);
  EXPECT_EQ(result.at_server.purpose, Purpose::kData);
  EXPECT_EQ(result.at_server.session, session.session);
  EXPECT_NE(result.at_server.key, session.key);

  target.session_key = "the secret of these tests";
  EXPECT_EQ(run().server, Refusal::kProof) << "the run's secret is not the session's";
  target = {"teacher/0", Purpose::kData, std::string(32, '0'), session.key};
  EXPECT_EQ(run().server, Refusal::kSession);
  target = {"teacher/0", Purpose::kData, session.session, session.key};
  student.name = "student/1";
  EXPECT_EQ(run().server, Refusal::kPeer) << "a session belongs to one peer";
}

TEST_F(Proofs, TheWrongPurposeIsRefused) {
  policy.control = false;
  EXPECT_EQ(run().server, Refusal::kPurpose);
  policy.control = true;
  target = {"teacher/0", Purpose::kData, "id", "key"};
  EXPECT_EQ(run().server, Refusal::kPurpose) << "nobody takes data here";
  target = {"teacher/0", static_cast<Purpose>(9), "id", "key"};
  EXPECT_EQ(run().server, Refusal::kPurpose);
}

TEST_F(Proofs, SupervisionProvesTheSecretOfTheRunForItself) {
  target.purpose = Purpose::kSupervision;
  EXPECT_EQ(run().server, Refusal::kPurpose) << "nobody is supervised here";
  policy.supervision = true;
  EXPECT_EQ(run().at_server.purpose, Purpose::kSupervision);

  // Somebody in between makes a control connection of it.
  const auto swap = [](int step, std::string& frame) {
    if (step == 0) frame[0] = static_cast<char>(Purpose::kControl);
  };
  EXPECT_EQ(run(swap).server, Refusal::kProof);
  student.credentials[0].secret = "a guess";
  EXPECT_EQ(run().server, Refusal::kProof);
}

TEST_F(Proofs, ControlAndDataProofsAreNotEachOther) {
  // A stranger in between turns a control connection into a data connection, or back.
  policy.find_session = [](const std::string&) {
    return SessionKey{"the secret of these tests", "student/0"};
  };
  const auto swap = [&](int step, std::string& frame) {
    if (step == 0) frame[0] = frame[0] == 1 ? 2 : 1;
  };
  EXPECT_EQ(run(swap).server, Refusal::kProof);
}

}  // namespace
}  // namespace retort::rpc::transport::testing
