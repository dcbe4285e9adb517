#include "base/process/line_program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process/pipe.h"
#include "tests/support/process_state.h"
#include "tests/support/sanitizer.h"
#include "tests/support/thrown.h"
#include "tests/support/wait_until.h"

namespace retort::test {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;
using Clock = Deadline::Clock;
using Over = LineProgram::Over;

// Long beyond whatever a program of these tests takes.
Deadline patience() { return Deadline::after(seconds(60) * kSlowness); }

// A shell that does as its script says, by the name "tools/0".
class Script : public LineProgram {
 public:
  explicit Script(const std::string& script, size_t max_line_bytes = kMaxLineBytes,
                  OnStderr on_stderr = nullptr)
      : LineProgram("tools/0", {"sh", "-c", script}, max_line_bytes, std::move(on_stderr)) {}

  // Exchanges until it is over, or has said that many lines; what it said.
  std::vector<Line> hear(size_t num_lines) {
    std::vector<Line> lines;
    const Deadline until = patience();
    while (lines.size() < num_lines && over_ == Over::kNot && !until.expired()) {
      Heard heard = exchange(until);
      over_ = heard.over;
      EXPECT_TRUE(over_ == Over::kNot || heard.lines.empty());
      for (Line& line : heard.lines)
        lines.push_back(std::move(line));
    }
    return lines;
  }
  // How it is over; it may say no line before.
  Over over() {
    EXPECT_TRUE(hear(1).empty());
    return over_;
  }

 private:
  Over over_ = Over::kNot;
};

// No part may leave a child or a descriptor behind, however its test ends.
class LineProgramTest : public testing::Test {
 protected:
  void SetUp() override { descriptors_ = num_descriptors(); }
  void TearDown() override {
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(num_descriptors(), descriptors_);
  }
  static int64_t num_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  }

 private:
  int64_t descriptors_ = 0;
};

TEST_F(LineProgramTest, AnswersWhatItIsAsked) {
  Script program("while read line; do echo \"it is $line\"; done");
  program.add("one\n");
  const auto first = program.hear(1);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].number, 1);
  EXPECT_EQ(first[0].text, "it is one");
  EXPECT_FALSE(first[0].is_cut);
  EXPECT_FALSE(program.has_unsent());

  program.add("two\n");
  program.add("three\n");
  const auto others = program.hear(2);
  ASSERT_EQ(others.size(), 2u);
  EXPECT_EQ(others[1].number, 3);
  EXPECT_EQ(others[1].text, "it is three");
}

TEST_F(LineProgramTest, BlankLinesCountAndAreLeftOut) {
  Script program("printf 'one\\n\\n \\t\\r\\ntwo\\n'");
  const auto lines = program.hear(2);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].number, 4);
  EXPECT_EQ(lines[1].text, "two");
  EXPECT_NE(program.over(), Over::kNot);
  EXPECT_EQ(program.take_half_line(), std::nullopt);
}

// Each answer is as long as its question, and nobody reads while it writes.
TEST_F(LineProgramTest, FullPipesDoNotDeadlock) {
  Script program("exec cat");
  const std::string question = std::string(10'000, 'q') + "\n";
  for (int i = 0; i < 300; ++i)
    program.add(question);
  EXPECT_TRUE(program.has_unsent());
  EXPECT_EQ(program.hear(300).size(), 300u);
  EXPECT_FALSE(program.has_unsent());
}

TEST_F(LineProgramTest, SilenceEndsAtTheDeadline) {
  Script program("exec sleep 1000");
  const auto begin = Clock::now();
  const Deadline until = Deadline::after(milliseconds(50));
  int times = 0;
  for (; !until.expired(); ++times) {
    const LineProgram::Heard heard = program.exchange(until);
    EXPECT_TRUE(heard.lines.empty());
    EXPECT_EQ(heard.over, Over::kNot);
  }
  EXPECT_LT(times, 10) << "it waits, and does not ask again and again";
  EXPECT_GE(Clock::now() - begin, milliseconds(50));
  EXPECT_LT(Clock::now() - begin, seconds(20));
  EXPECT_EQ(program.ending(Duration(0)), "");
  program.kill();
  EXPECT_TRUE(program.is_killed());
}

// What does not read is asked more than its pipe holds; the deadline holds all the same.
TEST_F(LineProgramTest, WhatIsNotReadStaysUnsent) {
  Script program("exec sleep 1000");
  program.add(std::string(2 << 20, 'q') + "\n");
  program.exchange(Deadline::after(milliseconds(20)));
  program.exchange(Deadline::after(milliseconds(20)));
  EXPECT_TRUE(program.has_unsent());
  program.kill();
}

// Of both streams an exchange takes a part, so that whoever asks sees the deadline.
TEST_F(LineProgramTest, BabblingDoesNotKeepTheDeadlineFromBeingSeen) {
  for (const char* script : {"exec yes", "exec yes >&2"}) {
    Script program(script);
    const auto begin = Clock::now();
    for (const Deadline until = Deadline::after(milliseconds(50)); !until.expired();) {
      const LineProgram::Heard heard = program.exchange(until);
      EXPECT_LE(heard.lines.size(), size_t{1} << 15) << "64 KiB of \"y\\n\"";
    }
    EXPECT_LT(Clock::now() - begin, seconds(20)) << script;
    program.kill();
  }
}

TEST_F(LineProgramTest, AWakeEndsTheWait) {
  Script program("exec sleep 1000");
  const Pipe wake = make_pipe();
  ASSERT_EQ(::write(wake.in.get(), "w", 1), 1);
  const auto begin = Clock::now();
  EXPECT_EQ(program.exchange(patience(), wake.out.get()).over, Over::kNot);
  EXPECT_LT(Clock::now() - begin, seconds(20));
  program.kill();
}

TEST_F(LineProgramTest, AHalfLineWaitsForItsEnd) {
  Script program("printf on; read line; printf 'e\\ntw'; exit 3");
  EXPECT_TRUE(program.exchange(Deadline::after(milliseconds(20))).lines.empty());
  program.add("go on\n");
  const auto lines = program.hear(1);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].text, "one");

  // The second has none: it is told when the program is over, once.
  EXPECT_NE(program.over(), Over::kNot);
  EXPECT_EQ(program.ending(), "exited with code 3");
  const auto half = program.take_half_line();
  ASSERT_TRUE(half.has_value());
  EXPECT_EQ(half->number, 2);
  EXPECT_EQ(half->text, "tw");
  EXPECT_EQ(program.take_half_line(), std::nullopt);
}

TEST_F(LineProgramTest, ALineAboveTheLimitIsCut) {
  Script program("echo short; echo 0123456789; echo 0123456789X and more; echo next", 10);
  const auto lines = program.hear(4);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1].text, "0123456789");
  EXPECT_FALSE(lines[1].is_cut) << "the limit is allowed";
  EXPECT_EQ(lines[2].number, 3);
  EXPECT_EQ(lines[2].text, "0123456789");
  EXPECT_TRUE(lines[2].is_cut);
  EXPECT_EQ(lines[3].number, 4);
  EXPECT_EQ(lines[3].text, "next");
}

// One that never ends is told once, and is no half line either.
TEST_F(LineProgramTest, ALineWithoutEndIsToldAtTheLimit) {
  Script program("head -c 3000000 /dev/zero | tr '\\0' x; echo; printf 0123456789X", 10);
  const auto lines = program.hear(3);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].text, "xxxxxxxxxx");
  EXPECT_TRUE(lines[0].is_cut);
  EXPECT_EQ(lines[1].number, 2);
  EXPECT_TRUE(lines[1].is_cut);
  EXPECT_EQ(program.take_half_line(), std::nullopt);
}

// Its exit code says more than that it has closed a pipe; it has one only if it ends.
TEST_F(LineProgramTest, WhatItClosedIsToldWhereItDoesNotEnd) {
  Script mute("echo last; exec sleep 1000 >&-");
  EXPECT_EQ(mute.hear(1).size(), 1u);
  EXPECT_EQ(mute.over(), Over::kStdout);
  EXPECT_EQ(mute.ending(milliseconds(10)), "closed its stdout");
  mute.kill();

  Script deaf("echo last; exec sleep 1000 <&-");
  EXPECT_EQ(deaf.hear(1).size(), 1u) << "what it wrote before is heard";
  EXPECT_EQ(deaf.over(), Over::kStdin);
  EXPECT_EQ(deaf.ending(milliseconds(10)), "closed its stdin");
  deaf.kill();
}

TEST_F(LineProgramTest, ErrorsSayWhoseTheyAreAndTheLastOfStderr) {
  Script exits("echo 'Traceback:\tno such module' >&2; echo '\033[1m' >&2; exit 3");
  EXPECT_NE(exits.over(), Over::kNot);
  const Error error = exits.failed(ErrorCode::kPeerLost, "it " + exits.ending());
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(error.message(), "tools/0: command '" + exits.command() +
                                 "': it exited with code 3; the last it wrote to stderr:\n"
                                 "Traceback:\tno such module\n\\x1b[1m");

  Script killed("kill -9 $$");
  EXPECT_NE(killed.over(), Over::kNot);
  EXPECT_EQ(killed.failed(ErrorCode::kPeerLost, "it " + killed.ending()).message(),
            "tools/0: command 'sh -c kill -9 $$': it was killed by signal 9");

  const Error missing = error_of([] { LineProgram("tools/0", {"/no/such/program"}); });
  EXPECT_EQ(missing.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(missing.message(),
            "tools/0: cannot start '/no/such/program': No such file or directory");
}

TEST_F(LineProgramTest, OfStderrTheEndIsKeptAndAllIsGiven) {
  size_t given = 0;
  Script program("head -c 100000 /dev/zero | tr '\\0' e >&2; echo the end >&2; echo done",
                 LineProgram::kMaxLineBytes,
                 [&given](std::string_view bytes) { given += bytes.size(); });
  EXPECT_EQ(program.hear(1).size(), 1u);
  const std::string message = program.failed(ErrorCode::kCorrupt, "no answer").message();
  EXPECT_EQ(given, 100'000u + 8);
  EXPECT_TRUE(message.ends_with("eethe end")) << message;
  EXPECT_LT(message.size(), LineProgram::kLastBytes + 300);

  Script closed("exec 2>&-; echo done");
  EXPECT_EQ(closed.hear(1).size(), 1u);
  EXPECT_NE(closed.over(), Over::kNot);
}

// The helper has all three pipes, and may answer; it goes with the program's group.
TEST_F(LineProgramTest, AHelperThatHoldsThePipesIsWaitedForUntilTheDeadline) {
  Script program("exec 3<&0; sleep 1000 <&3 & echo $!; exit 5");
  const auto lines = program.hear(1);
  ASSERT_EQ(lines.size(), 1u);
  const auto helper = static_cast<pid_t>(std::stol(lines[0].text));
  EXPECT_EQ(program.ending(), "exited with code 5");
  const auto begin = Clock::now();
  EXPECT_EQ(program.exchange(Deadline::after(milliseconds(20))).over, Over::kNot);
  EXPECT_LT(Clock::now() - begin, seconds(20));
  EXPECT_TRUE(process_runs(helper));

  program.kill();
  EXPECT_TRUE(wait_until([&] { return !process_runs(helper); }));
}

// It holds stdout alone, as a shell gives what it leaves behind no stdin.
TEST_F(LineProgramTest, AHelperWithoutItsStdinIsNotWaitedFor) {
  Script program("sleep 1000 & exit 5");
  EXPECT_EQ(program.over(), Over::kStdin);
  EXPECT_EQ(program.ending(), "exited with code 5");
  program.kill();
}

}  // namespace
}  // namespace retort::test
