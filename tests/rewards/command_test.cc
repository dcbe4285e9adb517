// A program of the user's as a reward, well-behaved and not.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "base/deadline.h"
#include "base/process/child.h"
#include "tests/rewards/player.h"
#include "tests/rewards/reward_support.h"
#include "tests/support/process_state.h"
#include "tests/support/wait_until.h"

namespace retort::rewards {
namespace {
using std::chrono::milliseconds, std::chrono::seconds;
using test::code_of, test::error_of, test::input_of, test::message_of;

// No part may leave a child or a descriptor behind, however its test ends.
class CommandTest : public testing::Test {
 protected:
  void SetUp() override { descriptors_ = num_descriptors(); }
  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(num_descriptors(), descriptors_);
  }
  static RewardSet set_of(const std::string& part, Duration timeout = seconds(60)) {
    return RewardSet(std::vector<RewardOptions>{{.type = RewardType::kCommand,
                                                 .name = "mine",
                                                 .argv = test::player(part),
                                                 .timeout = timeout}});
  }
  static std::vector<RewardInput> inputs(size_t count) {
    return std::vector<RewardInput>(count, input_of("four"));
  }
  static int64_t num_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  }

 private:
  int64_t descriptors_ = 0;
};

TEST_F(CommandTest, ScoresBatchAfterBatch) {
  RewardSet set = set_of("honest");
  for (int batch = 0; batch < 3; ++batch) {
    const auto scored = set.score({input_of("a"), input_of("null"), input_of("abc \"\n\xff")});
    EXPECT_EQ(scored[0].total, 1.0);
    EXPECT_EQ(scored[1].total, std::nullopt) << "null: not scorable";
    EXPECT_EQ(scored[1].components, (std::vector<std::optional<double>>{std::nullopt}));
    EXPECT_EQ(scored[2].total, 6.0 + 3) << "a byte that is not UTF-8 becomes U+FFFD";
  }
  RewardSet moved = std::move(set);
  EXPECT_EQ(moved.score(inputs(1))[0].total, 4.0);
}

TEST_F(CommandTest, NullIsLeftOutOfTheSum) {
  RewardSet set(std::vector<RewardOptions>{
      {.type = RewardType::kCommand, .weight = 10, .argv = test::player("honest")},
      {.type = RewardType::kLength, .weight = 0.5, .max = 10}});
  const auto scored = set.score({input_of("null"), input_of("ab")});
  EXPECT_EQ(scored[0].total, 0.5);
  EXPECT_EQ(scored[1].total, 20.5);
}

TEST_F(CommandTest, SendsReferenceAndFields) {
  RewardInput with = input_of("x");
  with.fields = {{"value", "7"}};
  RewardInput other = with;
  other.reference = "r";
  RewardSet set = set_of("echo");
  EXPECT_EQ(set.score({with, other})[0].total, 7.0);
  EXPECT_EQ(set.score({with, other})[1].total, 0.0);
}

TEST_F(CommandTest, AnswersMayComeInAnyOrder) {
  RewardSet set = set_of("pairs_reversed");
  const auto scored = set.score({input_of("a"), input_of("ab"), input_of("abc"), input_of("abcd")});
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(scored[i].total, static_cast<double>(i + 1));
}

TEST_F(CommandTest, FullPipesDoNotDeadlock) {
  RewardSet set = set_of("wordy");
  std::vector<RewardInput> many;
  for (size_t i = 0; i < 1500; ++i)
    many.push_back(input_of(std::string(2000 + i, 'c')));
  const auto scored = set.score(many);
  for (size_t i = 0; i < many.size(); ++i)
    ASSERT_EQ(scored[i].total, static_cast<double>(2000 + i)) << i;
}

TEST_F(CommandTest, StderrDoesNotDisturb) {
  RewardSet flood = set_of("floods_stderr");
  EXPECT_EQ(flood.score(inputs(3))[2].total, 4.0);
  RewardSet closed = set_of("closes_stderr");
  EXPECT_EQ(closed.score(inputs(3))[2].total, 4.0);
}

TEST_F(CommandTest, WhatIsNoAnswerIsAnErrorThatQuotesIt) {
  const std::pair<const char*, const char*> parts[] = {
      {"rubbish", "is not a JSON object: 'Loading model ...'"},
      {"long_rubbish", "xxx...'"},
      {"twice", "answers twice: '{\"id\":0,\"score\":2}'"},
      {"unknown_id", "answers what was not asked"},
      {"no_id", "has no id"},
      {"no_score", "has no score"},
      {"text_score", "a score is string; expected a number or null"},
      {"nan", "is not a JSON object"},
      {"infinite", "is not a JSON object"},
      {"floods_stdout", "a line of more than"},
  };
  for (const auto& [part, text] : parts) {
    RewardSet set = set_of(part);
    const std::string message = message_of([&] { set.score(inputs(3)); }, ErrorCode::kCorrupt);
    EXPECT_TRUE(message.starts_with("reward 'mine': command '")) << message;
    EXPECT_NE(message.find(text), std::string::npos) << part << ": " << message;
    EXPECT_LT(message.size(), 700u) << part;
    EXPECT_EQ(code_of([&] { set.score(inputs(1)); }), ErrorCode::kClosed) << part;
  }
}

TEST_F(CommandTest, AnAnswerTooMuchIsFoundByTheNextBatch) {
  RewardSet set = set_of("twice");
  EXPECT_EQ(code_of([&] {
              set.score(inputs(1));  // may see the second answer already
              set.score(inputs(1));
            }),
            ErrorCode::kCorrupt);
}

TEST_F(CommandTest, DeathIsReportedWithItsCause) {
  const std::pair<const char*, const char*> parts[] = {
      {"exits",
       "it exited with code 3; 3 of 3 completions were not scored; the last it wrote to "
       "stderr:\nTraceback: no such module"},
      {"exits_at_once", "it exited with code 4"},
      {"is_killed", "it was killed by signal 9"},
      {"closes_stdin", "it closed its stdin"},
      {"closes_stdout", "it closed its stdout"},
  };
  for (const auto& [part, text] : parts) {
    RewardSet set = set_of(part);
    const std::string message = message_of([&] { set.score(inputs(3)); }, ErrorCode::kPeerLost);
    EXPECT_NE(message.find(text), std::string::npos) << part << ": " << message;
  }
  const std::string message = message_of([] {
    RewardSet set(std::vector<RewardOptions>{
        {.type = RewardType::kCommand, .name = "mine", .argv = {"/no/such/program"}}});
  });
  EXPECT_EQ(message, "reward 'mine': cannot start '/no/such/program': No such file or directory");
}

TEST_F(CommandTest, TheDeadlineHolds) {
  for (const char* part :
       {"hangs", "hangs_half", "never_reads", "floods_stderr_for_ever", "floods_lines"}) {
    RewardSet set = set_of(part, milliseconds(300));
    std::vector<RewardInput> many = inputs(50);
    many[0].completion.assign(300'000, 'c');  // more than a pipe holds
    const auto start = Deadline::Clock::now();
    const std::string message = message_of([&] { set.score(many); }, ErrorCode::kTimeout);
    EXPECT_NE(message.find("of 50 completions are not scored after 300ms (timeout)"),
              std::string::npos)
        << part << ": " << message;
    EXPECT_LT(Deadline::Clock::now() - start, seconds(20)) << part;
  }
}

TEST_F(CommandTest, TheWholeGroupEnds) {
  RewardSet set = set_of("grandchild", seconds(10));
  const std::string message = error_of([&] { set.score(inputs(50)); }).message();
  const size_t at = message.find("grandchild ");
  ASSERT_NE(at, std::string::npos) << message;
  const auto pid = static_cast<pid_t>(std::stol(message.substr(at + 11)));
  const Deadline deadline = Deadline::after(seconds(30));
  while (test::process_runs(pid) && !deadline.expired())
    ::usleep(1000);
  EXPECT_FALSE(test::process_runs(pid));
}

// As a student that the system kills: no destructor runs.
TEST_F(CommandTest, EndsWithAProcessThatIsKilled) {
  Child employer(test::player("employs"));
  pid_t student = -1;
  pid_t program = -1;
  pid_t helper = -1;
  std::istringstream(test::line_from(employer.out())) >> student >> program >> helper;
  ASSERT_GT(helper, 0);
  EXPECT_TRUE(test::process_runs(program)) << "it ended with the thread that started it";

  // The program has a group of its own: that of the student's does not reach it.
  ::kill(student, SIGKILL);
  employer.kill();
  for (const pid_t pid : {program, helper}) {
    EXPECT_TRUE(test::wait_until([&] { return !test::process_runs(pid); }, seconds(30))) << pid;
    if (test::process_runs(pid)) ::kill(pid, SIGKILL);
  }
}

TEST_F(CommandTest, OutlivesTheThreadThatStartedIt) {
  std::optional<RewardSet> set;
  std::thread([&] { set.emplace(set_of("honest")); }).join();
  EXPECT_EQ(set->score(inputs(1))[0].total, 4.0);
}

TEST_F(CommandTest, AProgramIsSearchedInPath) {
  Child found({"true"});
  EXPECT_EQ(found.ending(seconds(60)), "exited with code 0");
  EXPECT_EQ(code_of([] { Child child({"no-such-program-of-retort"}); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(CommandTest, WhatDoesNotEndIsKilled) {
  const auto start = Deadline::Clock::now();
  {
    RewardSet set = set_of("stubborn");
    EXPECT_EQ(set.score(inputs(1))[0].total, 4.0);
  }
  EXPECT_LT(Deadline::Clock::now() - start, seconds(20));
}

}  // namespace
}  // namespace retort::rewards
