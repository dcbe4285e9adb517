// Who is not heard at the launcher's port, and what a liar costs: his own connection.
#include "rpc/launcher_port/frame_connection.h"
#include "rpc/launcher_port/store_identity.h"
#include "rpc/supervision/supervision_frames.h"
#include "tests/rpc/supervision/supervision_fixture.h"
#include "tests/rpc/transport/raw_stream.h"
#include "tests/support/thrown.h"

namespace retort::rpc::supervision::testing {
namespace {

using launcher_port::with_length;
using transport::testing::prove;
using transport::testing::RawStream;

const transport::ProofTarget kLauncher{.name = launcher_port::kStoreName,
                                       .purpose = transport::Purpose::kSupervision};

std::string frame(const ProcessFrame& content) { return with_length(to_bytes(content)); }

// Every test ends with a process that was connected all the time.
class SupervisionStrangers : public Supervised {
 protected:
  void SetUp() override {
    port().expect("student/0", 0);
    port().expect("teacher/0", 0);
    student_ = std::make_unique<Member>(options());
    ASSERT_TRUE(wait_for(Kind::kConnected));
  }
  void TearDown() override {
    student_->client().report("honest");
    EXPECT_TRUE(student_->client().flush(soon()));
    EXPECT_EQ(reports(), (std::vector<std::string>{"honest"}));
    EXPECT_EQ(count(Kind::kDisconnected), 0u);
  }
  std::string address() const { return server_->host() + ":" + std::to_string(server_->port()); }
  static transport::Identity teacher() { return rendezvous::testing::identity_of("teacher/0"); }

  std::unique_ptr<Member> student_;
};

TEST_F(SupervisionStrangers, AWrongSecretIsRefused) {
  transport::Identity stranger = teacher();
  stranger.credentials[0].secret = "a guess";
  RawStream guess(address());
  EXPECT_FALSE(prove(guess, stranger, kLauncher));

  // As a client, which dials again and again.
  SupervisionClient::Options with_guess = options("teacher/0");
  with_guess.access.secret = "a guess";
  SupervisionClient client(with_guess);
  client.report("of a stranger");
  EXPECT_FALSE(client.flush(Deadline::after(200ms)));
  EXPECT_EQ(count(Kind::kConnected, "teacher/0"), 0u);
}

TEST_F(SupervisionStrangers, NothingIsReadBeforeTheProof) {
  for (const std::string& junk :
       {frame({.kind = FromProcess::kHello}), std::string(100'000, '\xff')}) {
    RawStream stream(address());
    stream.send(junk);
    EXPECT_EQ(stream.drain(), "");
  }
}

TEST_F(SupervisionStrangers, AProvenProcessThatNobodyStartedIsTurnedAway) {
  RawStream stream(address());
  ASSERT_TRUE(prove(stream, rendezvous::testing::identity_of("teacher/7"), kLauncher));
  stream.send(frame({.kind = FromProcess::kHello}));
  EXPECT_EQ(stream.drain(), "");
  EXPECT_EQ(count(Kind::kConnected, "teacher/7"), 0u);
}

TEST_F(SupervisionStrangers, AProvenLiarLosesHisConnection) {
  const auto with_head = [](uint32_t length) {
    return std::string(reinterpret_cast<const char*>(&length), sizeof length);
  };
  const std::string hello = frame({.kind = FromProcess::kHello});
  std::string unknown_kind = to_bytes(ProcessFrame{});
  unknown_kind[0] = 99;
  const std::string long_report(kMaxReportBytes + 1, 'x');

  for (const std::string& lie :
       {with_head(0), with_head(0xffff'ffff), with_head(kFrameLimits.max_frame_bytes + 1),
        with_length(unknown_kind), with_length(to_bytes(ProcessFrame{}) + "left over"),
        frame({.kind = FromProcess::kBeat}), hello + hello,
        frame({.kind = FromProcess::kHello, .restart = -1}),
        frame({.kind = FromProcess::kHello, .restart = 1}),
        hello + frame({.kind = FromProcess::kReport, .report = "without a number"}),
        hello + frame({.kind = FromProcess::kBeat, .report = "beside a heartbeat"}),
        hello + frame({.kind = FromProcess::kReport, .sequence = 1, .report = long_report})}) {
    RawStream stream(address());
    ASSERT_TRUE(prove(stream, teacher(), kLauncher));
    stream.send(lie);
    stream.drain();  // it ends
  }
}

TEST_F(SupervisionStrangers, APortWithoutSupervisionTakesNone) {
  const auto store = rendezvous::testing::make_server();
  RawStream stream(store->addresses().front());
  EXPECT_FALSE(prove(stream, teacher(), kLauncher));
}

// A process that says hello and then stands still; until then it was only loading.
class Frozen : public Supervised {
 protected:
  Frozen() : Supervised({.interval = 50ms, .limit = 3s}) {}
};

TEST_F(Frozen, IsMissedAfterTheLimitAndHeardAgain) {
  port().expect("student/0", 0);
  RawStream stream(server_->host() + ":" + std::to_string(server_->port()));
  ASSERT_TRUE(prove(stream, rendezvous::testing::identity_of("student/0"), kLauncher));
  const auto start = std::chrono::steady_clock::now();
  stream.send(frame({.kind = FromProcess::kHello}));
  ASSERT_TRUE(wait_for(Kind::kSilent));
  EXPECT_GE(std::chrono::steady_clock::now() - start, times_.limit);
  EXPECT_EQ(count(Kind::kHeard), 0u);
  stream.send(frame({.kind = FromProcess::kBeat}));
  EXPECT_TRUE(wait_for(Kind::kHeard));
  EXPECT_EQ(count(Kind::kDisconnected), 0u);
}

TEST_F(Frozen, OneThatNeverConnectedIsNotMissed) {
  port().expect("teacher/0", 0);
  std::this_thread::sleep_for(times_.limit + times_.limit / 4);
  EXPECT_EQ(count(Kind::kSilent, "teacher/0"), 0u);
}

}  // namespace
}  // namespace retort::rpc::supervision::testing
