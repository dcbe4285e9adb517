// Serving processes that are lost in the middle of a run.
#include <cstring>
#include <map>
#include <utility>

#include "launch/run_folder/driving_lock.h"
#include "tests/launch/supervision/supervisor_fixture.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

using std::chrono::milliseconds;

class Restart : public SupervisorTest {
 protected:
  Restart() {
    add("student", 0, "train", "0");
    script_.started = [this](const std::string& process, pid_t pid) {
      lives_[process].push_back(pid);
    };
  }

  void add_server(int64_t rank, const std::string& replica, int64_t restarts,
                  const std::string& more = "") {
    add("teacher", rank, "serve-again", more);
    options_.processes.back().replica = replica;
    options_.processes.back().restarts = restarts;
  }
  // Once all of `servers` serve, in the lives that the test wants, the driver is asked to end. By
  // then it must be able to hear that.
  void finish_run() {
    EXPECT_TRUE(wait_until([&] { return launch::anyone_drives(folder_); }));
    ::kill(lives_.at("student/0").front(), SIGTERM);
  }
  // `signal` to teacher/0 the first time that it serves; the run ends when it serves in its next
  // life.
  void lose_once(int signal) {
    script_.status = [this, signal](const std::string& role, const std::string& state) {
      if (role != "teacher" || state != "serving") return;
      const auto& pids = lives_.at("teacher/0");
      if (pids.size() > 1) return finish_run();
      ::kill(pids.front(), signal);
    };
  }
  size_t lives(const std::string& process) const { return lives_.at(process).size(); }

  std::map<std::string, std::vector<pid_t>> lives_;
};

class LostBy : public Restart, public testing::WithParamInterface<int> {};

TEST_P(LostBy, IsStartedAgainAndTheRunGoesOn) {
  options_.held_timeout = milliseconds(300);
  add_server(0, "a", 1);
  lose_once(GetParam());
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_FALSE(result.cause);
  EXPECT_EQ(lives("teacher/0"), 2u);
  EXPECT_EQ(get(folder_ / "life-teacher-0"), "1");
  EXPECT_EQ(get(folder_ / "stopped-teacher-0"), "asked");
  EXPECT_TRUE(exists("saved-student-0"));
  ASSERT_EQ(result.remarks.size(), 1u);
  EXPECT_NE(result.remarks[0].find("was started again (1 of 1 times)"), std::string::npos)
      << result.remarks[0];
}

// It ends by itself after SIGTERM, with code 0.
INSTANTIATE_TEST_SUITE_P(Signals, LostBy, testing::Values(SIGKILL, SIGTERM, SIGSTOP),
                         [](const auto& info) {
                           return std::string("SIG") + ::sigabbrev_np(info.param);
                         });

TEST_F(Restart, TakesTheWholeReplicaAndNoOther) {
  add_server(0, "a", 1);
  add_server(1, "a", 1);
  add_server(2, "b", 1);
  int serving = 0;
  script_.status = [&](const std::string& role, const std::string& state) {
    if (role != "teacher" || state != "serving") return;
    ++serving;
    if (serving == 3) ::kill(lives_.at("teacher/1").front(), SIGKILL);
    if (serving == 5) finish_run();
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_EQ(lives("teacher/0"), 2u);
  EXPECT_EQ(lives("teacher/1"), 2u);
  EXPECT_EQ(lives("teacher/2"), 1u);
}

TEST_F(Restart, OnlySoOftenAsTheRecipeSays) {
  add_server(0, "a", 2);
  script_.status = [&](const std::string& role, const std::string& state) {
    if (role == "teacher" && state == "serving") ::kill(lives_.at("teacher/0").back(), SIGKILL);
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "teacher/0");
  EXPECT_EQ(lives("teacher/0"), 3u);
  EXPECT_TRUE(exists("saved-student-0"));
}

TEST_F(Restart, NotOfWhatNeverServed) {
  add("teacher", 0, "fail", "wrong");
  options_.processes.back().replica = "a";
  options_.processes.back().restarts = 3;
  const auto result = run();
  EXPECT_EQ(result.exit_code, 2) << result.report();
  EXPECT_EQ(lives("teacher/0"), 1u);
}

TEST_F(Restart, OfOneThatIsKilledWhileItLoads) {
  add_server(0, "a", 1, "loads");
  script_.status = [&](const std::string& role, const std::string& state) {
    if (role != "teacher") return;
    if (state == "loading") ::kill(lives_.at("teacher/0").front(), SIGKILL);
    if (state == "serving") finish_run();
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_EQ(lives("teacher/0"), 2u);
}

TEST_F(Restart, OfAReplicaThatFailsToComeBackIsTriedAgain) {
  add_server(0, "a", 2, "breaks");
  script_.status = [&](const std::string& role, const std::string& state) {
    if (role == "teacher" && state == "serving") ::kill(lives_.at("teacher/0").back(), SIGKILL);
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->exit_code, 1);
  EXPECT_EQ(lives("teacher/0"), 3u);
}

// A log that is a folder: nothing can be started that writes there.
class NoStart : public Restart {
 protected:
  void lose_its_log(int64_t restarts) {
    add_server(0, "a", restarts);
    script_.status = [this](const std::string& role, const std::string& state) {
      if (role != "teacher" || state != "serving") return;
      if (lives("teacher/0") > 1) return finish_run();
      std::filesystem::remove(log());
      std::filesystem::create_directory(log());
      ::kill(lives_.at("teacher/0").front(), SIGKILL);
    };
  }
  std::filesystem::path log() const { return options_.log_folder / "teacher-0.log"; }
};

TEST_F(NoStart, IsOneMoreLossAndTriedAgain) {
  lose_its_log(2);
  script_.phase = [this](const std::string& message) {
    if (message.find("could not be started again: ") != std::string::npos)
      std::filesystem::remove(log());
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_EQ(lives("teacher/0"), 2u);
  ASSERT_EQ(result.remarks.size(), 2u);
  EXPECT_NE(result.remarks[1].find("(2 of 2 times)"), std::string::npos) << result.remarks[1];
}

TEST_F(NoStart, OnlySoOftenAsTheRecipeSays) {
  lose_its_log(1);
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->name(), "teacher/0");
  EXPECT_EQ(result.cause->what(), "could not be started again");
  EXPECT_NE(result.cause->message.find("teacher-0.log"), std::string::npos)
      << result.cause->message;
}

// Where its host is lost there may be another one.
TEST_F(Restart, WhereItIsPlaced) {
  add_server(0, "a", 1);
  add_server(1, "a", 1);
  std::vector<std::string> placed;
  options_.place_again = [&](const std::vector<launch::ProcessSpec*>& replica) {
    for (const launch::ProcessSpec* spec : replica)
      placed.push_back(spec->name());
  };
  int serving = 0;
  script_.status = [&](const std::string& role, const std::string& state) {
    if (role != "teacher" || state != "serving") return;
    ++serving;
    if (serving == 2) ::kill(lives_.at("teacher/1").front(), SIGKILL);
    if (serving == 4) finish_run();
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_EQ(placed, (std::vector<std::string>{"teacher/0", "teacher/1"}));
}

class NoPlace : public Restart {
 protected:
  // Replica a is lost, and no host has room for it; the run is asked to end once that is told.
  void lose_a() {
    options_.place_again = [](const std::vector<launch::ProcessSpec*>&) {
      throw Error(ErrorCode::kUnavailable, "no slot is free");
    };
    script_.status = [this](const std::string& role, const std::string& state) {
      if (role == "teacher" && state == "serving" && ++serving_ == servers_)
        ::kill(lives_.at("teacher/0").front(), SIGKILL);
    };
    script_.phase = [this](const std::string& message) {
      if (message.find("is given up") != std::string::npos) finish_run();
    };
  }
  int serving_ = 0, servers_ = 1;
};

TEST_F(NoPlace, IsGivenUpWhereAnotherReplicaLives) {
  add_server(0, "a", 3);
  add_server(1, "b", 3);
  servers_ = 2;
  lose_a();
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.report();
  EXPECT_EQ(lives("teacher/0"), 1u);
  EXPECT_EQ(lives("teacher/1"), 1u);
  ASSERT_EQ(result.remarks.size(), 2u);
  EXPECT_EQ(result.remarks[1], "a is given up, the others of its role go on: no slot is free");
}

TEST_F(NoPlace, EndsTheRunWhereItIsTheOnlyOne) {
  add_server(0, "a", 2);
  lose_a();
  const auto result = run();
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->what(), "could not be started again");
  EXPECT_EQ(result.cause->message, "no slot is free");
  EXPECT_EQ(lives("teacher/0"), 1u);
}

// While the driver saves it may need its teacher.
TEST_F(Restart, AlsoWhileTheRunIsStopped) {
  options_.processes.clear();
  add("student", 0, "wait-for-life", "life-teacher-0 1");
  add_server(0, "a", 1);
  bool killed = false;
  when_ready(2, [] { ::kill(::getpid(), SIGTERM); });
  script_.phase = [&](const std::string& message) {
    if (message.find("stopping") == std::string::npos || std::exchange(killed, true)) return;
    ::kill(lives_.at("teacher/0").front(), SIGKILL);
  };
  const auto result = run();
  EXPECT_EQ(result.exit_code, launch::kExitStoppedEarly) << result.report();
  EXPECT_EQ(lives("teacher/0"), 2u);
}

}  // namespace
}  // namespace retort::test
