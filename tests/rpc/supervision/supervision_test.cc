// Both ends of supervision connections in one process: what is said arrives, once and in order,
// however often the connection breaks; and each end notices that the other one is gone.
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>

#include "rpc/launcher_port/store_identity.h"
#include "rpc/supervision/supervision_frames.h"
#include "rpc/transport/acceptor.h"
#include "tests/rpc/supervision/supervision_fixture.h"

namespace retort::rpc::supervision::testing {
namespace {

// Ends every connection of this process to the port, as a network may.
int cut_connections(uint16_t port) {
  int cut = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family != AF_INET || ntohs(address.sin_port) != port) continue;
    ::shutdown(fd, SHUT_RDWR);
    ++cut;
  }
  return cut;
}

TEST_F(Supervised, ReportsArriveInTheirOrder) {
  port().expect("student/0", 0);
  port().expect("teacher/1", 2);
  Member student(options());
  Member teacher(options("teacher/1", 2));
  student.client().report("loading");
  student.client().report("training");
  teacher.client().report("serving");
  EXPECT_TRUE(student.client().flush(soon()));
  EXPECT_TRUE(teacher.client().flush(soon()));

  // Nothing is waited for: what a process knows to have arrived is there.
  EXPECT_EQ(count(Kind::kReport), 2u);
  EXPECT_EQ(count(Kind::kReport, "teacher/1"), 1u);
  EXPECT_EQ(events_.front().kind, Kind::kConnected);
  for (const SupervisionEvent& event : events_)
    EXPECT_EQ(event.restart, event.process == "teacher/1" ? 2 : 0);
  EXPECT_EQ(student.why_lost(), "");
}

TEST_F(Supervised, AConnectionThatBreaksLosesNothingAndRepeatsNothing) {
  port().expect("student/0", 0);
  Member student(options());
  std::vector<std::string> said;
  int cut = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 20; ++i) {
      said.push_back(std::to_string(said.size()));
      student.client().report(said.back());
      if (i % 7 == round % 7) cut += cut_connections(server_->port());
    }
    ASSERT_TRUE(student.client().flush(soon()));
  }
  EXPECT_EQ(reports(), said);
  EXPECT_GT(cut, 0) << "nothing was cut";
  EXPECT_TRUE(wait_for(Kind::kDisconnected));
  EXPECT_EQ(student.why_lost(), "");
}

// A launcher that takes nothing for a while: what was said last is what counts.
TEST_F(Supervised, OfTooManyReportsTheLastAreKept) {
  Member student(options());  // not expected yet: it is turned away and dials again
  for (int i = 0; i < 1000; ++i)
    student.client().report(std::to_string(i));
  port().expect("student/0", 0);
  ASSERT_TRUE(student.client().flush(soon()));
  const std::vector<std::string> arrived = reports();
  ASSERT_EQ(arrived.size(), kMaxPendingReports);
  EXPECT_EQ(arrived.back(), "999");
  EXPECT_EQ(arrived.front(), std::to_string(1000 - kMaxPendingReports));
}

TEST_F(Supervised, AReportHasABound) {
  port().expect("student/0", 0);
  Member student(options());
  student.client().report(std::string(kMaxReportBytes, 'x'));
  EXPECT_TRUE(student.client().flush(soon()));
  EXPECT_THROW(student.client().report(std::string(kMaxReportBytes + 1, 'x')), Error);
}

TEST_F(Supervised, TheRequestToStopIsAnswered) {
  port().expect("student/0", 0);
  Member student(options());
  ASSERT_TRUE(wait_for(Kind::kConnected));
  port().stop("student/0", 90s);
  EXPECT_TRUE(wait_for(Kind::kStopping));
  EXPECT_EQ(student.stop_within_ms(), 90'000);
}

// Also one that connects later, or again.
TEST_F(Supervised, TheRequestToStopWaitsForTheProcess) {
  port().expect("student/0", 0);
  port().stop("student/0", 5s);
  Member student(options());
  EXPECT_TRUE(wait_for(Kind::kStopping));
  cut_connections(server_->port());
  EXPECT_TRUE(wait_for(Kind::kStopping, 2));
}

TEST_F(Supervised, WhoCannotStopDoesNotAnswer) {
  port().expect("student/0", 0);
  Member student(options(), /*answers=*/false);
  port().stop("student/0", 5s);
  student.client().report("after the request");
  ASSERT_TRUE(student.client().flush(soon()));
  student.client().report("after its answer");
  ASSERT_TRUE(student.client().flush(soon()));
  EXPECT_EQ(count(Kind::kStopping), 0u);
}

TEST_F(Supervised, AProcessThatWasReplacedIsTurnedAway) {
  port().expect("teacher/0", 0);
  Member before(options("teacher/0", 0));
  before.client().report("serving");
  ASSERT_TRUE(before.client().flush(soon()));

  port().expect("teacher/0", 1);
  EXPECT_TRUE(test::wait_until([&] { return !before.why_lost().empty(); }));
  EXPECT_NE(before.why_lost().find("started this process again"), std::string::npos);
  before.client().report("I am still here");
  EXPECT_FALSE(before.client().flush(Deadline::after(60s))) << "a ghost was heard";

  // One that wakes up only now as well, and the one that took its place.
  Member late(options("teacher/0", 0));
  Member after(options("teacher/0", 1));
  after.client().report("serving again");
  ASSERT_TRUE(after.client().flush(soon()));
  EXPECT_TRUE(test::wait_until([&] { return !late.why_lost().empty(); }));
  EXPECT_EQ(reports(), (std::vector<std::string>{"serving", "serving again"}));
  EXPECT_EQ(after.why_lost(), "");
}

TEST_F(Supervised, ALauncherThatEndsIsMissedAtOnce) {
  port().expect("student/0", 0);
  Member student(options());
  ASSERT_TRUE(wait_for(Kind::kConnected));
  server_.reset();
  EXPECT_TRUE(test::wait_until([&] { return !student.why_lost().empty(); }));
  EXPECT_EQ(student.why_lost(), "it has ended") << "it waited for the limit, a minute";
  student.client().report("to nobody");
  EXPECT_FALSE(student.client().flush(soon()));
}

class Impatient : public Supervised {
 protected:
  Impatient() : Supervised({.interval = 50ms, .limit = 1s}) {}
};
class LessImpatient : public Supervised {
 protected:
  LessImpatient() : Supervised({.interval = 50ms, .limit = 4s}) {}
};

// Longer than the limit: heartbeats alone keep both ends content.
TEST_F(LessImpatient, HeartbeatsAreEnough) {
  port().expect("student/0", 0);
  Member student(options());
  ASSERT_TRUE(wait_for(Kind::kConnected));
  std::this_thread::sleep_for(times_.limit + times_.limit / 4);
  EXPECT_EQ(student.why_lost(), "");
  EXPECT_EQ(count(Kind::kSilent), 0u);
}

// Takes connections for supervision and then says nothing, as a launcher that stands still.
class SilentLauncher {
 public:
  SilentLauncher() : identity_(launcher_port::identity_of(access(""), launcher_port::kStoreName)) {
    transport::AcceptorHandlers handlers;
    handlers.on_control = [](auto, const auto&) {};
    handlers.on_supervision = [this](std::shared_ptr<transport::Stream> stream, const auto&) {
      streams_.push_back(std::move(stream));
    };
    acceptor_ = std::make_shared<transport::Acceptor>(
        loop_, transport::AcceptorOptions{}, identity_, transport::StreamFactory(), handlers);
    acceptor_->start();
    loop_->start();
  }
  ~SilentLauncher() {
    loop_->post([this] {
      acceptor_->close();
      for (const auto& stream : streams_)
        stream->close();
    });
    loop_->stop();
  }
  uint16_t port() const {
    const std::string address = acceptor_->addresses().front();
    return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }

 private:
  const transport::Identity identity_;
  const std::shared_ptr<rpc::detail::Loop> loop_ = std::make_shared<rpc::detail::Loop>();
  std::shared_ptr<transport::Acceptor> acceptor_;
  std::vector<std::shared_ptr<transport::Stream>> streams_;
};

TEST_F(Impatient, ALauncherThatStandsStillIsMissedAfterTheLimit) {
  const SilentLauncher launcher;
  SupervisionClient::Options to_it = options();
  to_it.port = launcher.port();
  const auto start = std::chrono::steady_clock::now();
  Member student(to_it);
  EXPECT_TRUE(test::wait_until([&] { return !student.why_lost().empty(); }));
  EXPECT_EQ(student.why_lost(), "it has been silent for 1s");
  EXPECT_GE(std::chrono::steady_clock::now() - start, times_.limit);
}

}  // namespace
}  // namespace retort::rpc::supervision::testing
