// A program as an environment, well-behaved and not (player.py).
#include "environments/command_environment.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "environments/make_environment.h"
#include "tests/environments/episodes.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/source_folder.h"
#include "tests/support/thrown.h"

namespace retort::environments {
namespace {
using std::chrono::milliseconds, std::chrono::seconds;
using test::close_episode, test::error_of, test::kEchoCall, test::open_episode, test::patience,
    test::step_episode, test::turn_of;

EnvironmentOptions player(const std::string& part, const std::string& file = "") {
  EnvironmentOptions options;
  options.command = {"python3", "-S", "-E",
                     (test::source_folder() / "tests/environments/player.py").string(), part};
  if (!file.empty()) options.command.push_back(file);
  options.start_timeout = seconds(120) * test::kSlowness;
  return options;
}

std::unique_ptr<roles::Environment> start(const EnvironmentOptions& options,
                                          Duration timeout = seconds(60)) {
  return make_environment("tools/0", options, timeout);
}
std::unique_ptr<roles::Environment> start(const std::string& part,
                                          Duration timeout = seconds(60)) {
  return start(player(part), timeout);
}

// No part may leave a child or a descriptor behind, however its test ends.
class CommandEnvironmentTest : public test::FolderTest {
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
  // The error of a step, the first of an episode that this part has opened.
  static Error step_error(roles::Environment& environment) {
    open_episode(environment, 1);
    return error_of([&] { step_episode(environment, 1); });
  }
  // How many lines of a scripted episode, one list for each request.
  static std::string says(const std::string& lists) { return R"({"says": [)" + lists + "]}"; }

 private:
  int64_t descriptors_ = 0;
};

TEST_F(CommandEnvironmentTest, PlaysAnEpisode) {
  const auto environment = start("honest");
  const roles::EnvironmentInfo info = environment->info();
  EXPECT_EQ(info.name, "tools/0");
  EXPECT_FALSE(info.user_turns);
  EXPECT_EQ(info.episodes, 32);

  // Twice, by the same number: episodes of a caller may begin anew.
  for (int time = 1; time <= 2; ++time) {
    const auto opened = open_episode(*environment, 40, R"({"text": "grüße \"x\""})");
    EXPECT_EQ(opened.tools,
              R"([{"type":"function","function":{"name":"echo","parameters":{}}}])");
    EXPECT_EQ(opened.messages, R"([{"role":"user","content":"grüße \"x\" 7"}])");
    EXPECT_EQ(opened.append, "");
    const auto answer = step_episode(*environment, 40, 1, kEchoCall);
    EXPECT_EQ(answer.messages,
              R"([{"role":"tool","name":"echo","content":"{\"b\": 1, \"a\": [2]}"}])")
        << "arguments keep the order of their keys";
    EXPECT_FALSE(answer.done);
    EXPECT_EQ(answer.failed_calls, 0);
    const auto last = step_episode(*environment, 40, 3);
    EXPECT_EQ(last.messages, R"([{"role":"user","content":"hello"}])");
    EXPECT_TRUE(last.done);
    const auto closed = close_episode(*environment, 40);
    EXPECT_EQ(closed.reward, time / 8.0) << "the number on the wire is the environment's own";
    EXPECT_EQ(closed.metrics, R"({"solved":1})");
  }
  EXPECT_TRUE(start("talks")->info().user_turns);
}

TEST_F(CommandEnvironmentTest, NumbersOfACallKeepTheirDigits) {
  const auto environment = start("honest");
  environment->info();
  open_episode(*environment, 1);
  const std::string number = "123456789012345678901234567890";
  const auto answer = step_episode(
      *environment, 1, 1, R"([{"id": "c0", "name": "echo", "arguments": {"a": )" + number + "}}]");
  EXPECT_NE(answer.messages.find(number), std::string::npos) << answer.messages;
}

TEST_F(CommandEnvironmentTest, HasManyEpisodesAtOnce) {
  EnvironmentOptions options = player("honest");
  options.episodes = 200;
  const auto environment = start(options);
  std::vector<Future<roles::OpenedEpisode>> opened;
  for (uint64_t i = 0; i < 200; ++i)
    opened.push_back(environment->open({.episode = i, .seed = i, .row = "{}"}));
  const Error error = error_of([&] { open_episode(*environment, 200); });
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(error.message().find("all of its 200 episodes are open"), std::string::npos)
      << error.message();

  // All of them step by step, their calls beside each other.
  for (auto& one : opened)
    one.get(patience());
  for (int64_t turn = 1; turn <= 3; ++turn) {
    std::vector<Future<roles::EpisodeAnswer>> answers;
    for (uint64_t i = 0; i < 200; ++i)
      answers.push_back(environment->step(turn_of(i, turn, "[]", std::to_string(i * 1000))));
    for (uint64_t i = 0; i < 200; ++i) {
      const auto answer = answers[i].get(patience());
      ASSERT_NE(answer.messages.find("\"" + std::to_string(i * 1000) + "\""), std::string::npos);
      ASSERT_EQ(answer.done, turn == 3);
    }
  }
  for (uint64_t i = 0; i < 200; ++i)
    EXPECT_EQ(close_episode(*environment, i).reward, static_cast<double>(i + 1) / 8);
}

TEST_F(CommandEnvironmentTest, AnswersMayComeInAnyOrder) {
  const auto environment = start("reversed");
  std::vector<Future<roles::OpenedEpisode>> opened;
  for (uint64_t i = 0; i < 4; ++i)
    opened.push_back(environment->open({.episode = i, .seed = 100 + i, .row = "{}"}));
  for (uint64_t i = 0; i < 4; ++i)
    EXPECT_NE(opened[i].get(patience()).messages.find(std::to_string(100 + i)),
              std::string::npos);
  std::vector<Future<roles::ClosedEpisode>> closed;
  for (uint64_t i = 0; i < 4; ++i)
    closed.push_back(environment->close({.episode = i}));
  for (uint64_t i = 0; i < 4; ++i)
    EXPECT_EQ(closed[i].get(patience()).reward, static_cast<double>(i + 1) / 8);
}

TEST_F(CommandEnvironmentTest, FullPipesDoNotDeadlock) {
  const auto environment = start("slow");
  const std::string row = R"({"text": ")" + std::string(300'000, 'c') + R"("})";
  std::vector<Future<roles::OpenedEpisode>> opened;
  for (uint64_t i = 0; i < 20; ++i)
    opened.push_back(environment->open({.episode = i, .seed = i, .row = row}));
  for (auto& one : opened)
    EXPECT_GT(one.get(patience()).messages.size(), 300'000u);
}

TEST_F(CommandEnvironmentTest, StderrDoesNotDisturb) {
  const auto environment = start("floods_stderr");
  open_episode(*environment, 1);
  EXPECT_EQ(close_episode(*environment, 1).reward, 1 / 8.0);
}

TEST_F(CommandEnvironmentTest, WhatAnswersNothingEndsTheProgram) {
  const std::pair<const char*, const char*> parts[] = {
      {"babbling", "line 3 is no JSON object that can be read; expected an answer to \"open\", "
                   "\"step\" or \"close\", and nothing else on stdout: 'Loading model ...'"},
      {"list", "line 3 is no JSON object"},
      {"nan", "line 3 is no JSON object"},
      {"deep", "line 3 is no JSON object"},
      {"no_verb", "line 3 has not one of \"open\", \"step\" and \"close\""},
      {"two_verbs", "line 3 has not one of"},
      {"text_id", "line 3 \"step\" is not the number of an episode"},
      {"unknown_id", "line 3 \"step\" names episode 99, which was never opened"},
      {"zero_id", "line 3 \"close\" names episode 0, which was never opened"},
      {"wrong_verb", "line 3 \"open\" answers what was not asked of episode 1"},
      {"long_line", "line 3 has more than 1048576 bytes; expected one JSON object a line: 'xxx"},
      {"floods", "line 3 is no JSON object"},
  };
  for (const auto& [part, text] : parts) {
    const auto environment = start(part);
    const Error error = step_error(*environment);
    const std::string& message = error.message();
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << part << ": the episode is lost";
    EXPECT_TRUE(message.starts_with("tools/0: command 'python3 -S -E ")) << message;
    EXPECT_NE(message.find(text), std::string::npos) << part << ": " << message;
    EXPECT_LT(message.size(), 1000u) << part;
  }
}

TEST_F(CommandEnvironmentTest, AnswersOfClosedEpisodesEndTheProgram) {
  const auto environment = start("answers_closed");
  open_episode(*environment, 1);
  open_episode(*environment, 2);
  EXPECT_EQ(close_episode(*environment, 1).reward, 1 / 8.0);
  const Error error = error_of([&] { step_episode(*environment, 2); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_NE(error.message().find("which is closed"), std::string::npos) << error.message();

  const auto twice = start("answers_twice");
  open_episode(*twice, 1);
  const Error again = error_of([&] { step_episode(*twice, 1); });
  EXPECT_NE(again.message().find("line 3 \"open\" answers what was not asked of episode 1"),
            std::string::npos)
      << again.message();
}

TEST_F(CommandEnvironmentTest, AWrongAnswerIsThatOfItsCallAlone) {
  const std::pair<const char*, const char*> answers[] = {
      {R"({\"step\": N})", "has no messages; expected one for each call, or \"done\": true"},
      {R"({\"step\": N, \"messages\": {}})", "messages is no array"},
      {R"({\"step\": N, \"messages\": [1]})", "messages[0] is no object"},
      {R"({\"step\": N, \"messages\": [{\"role\": \"assistant\", \"content\": \"\"}]})",
       "messages[0].role is not tool or user"},
      {R"({\"step\": N, \"messages\": [{\"role\": \"tool\"}]})", "messages[0].content is no text"},
      {R"({\"step\": N, \"messages\": [], \"done\": 1})", "done is not true or false"},
      {R"({\"step\": N, \"message\": []})", "has a key 'message'; there are step, messages"},
      {R"({\"step\": N, \"messages\": [], \"done\": true, \"failed_calls\": 1})",
       "failed_calls is not a number from 0"},
  };
  const auto environment = start("scripted");
  const std::string opened = R"(["{\"open\": N}"], )", closed = R"(, ["{\"close\": N}"])";
  uint64_t episode = 1;
  for (const auto& [answer, text] : answers) {
    open_episode(*environment, episode, says(opened + "[\"" + answer + "\"]" + closed));
    const Error error = error_of([&] { step_episode(*environment, episode); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.message();
    EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("of episode " + std::to_string(episode)), std::string::npos);
    // It is over, and the program goes on.
    EXPECT_EQ(error_of([&] { step_episode(*environment, episode); }).code(),
              ErrorCode::kInvalidArgument);
    ++episode;
  }
}

TEST_F(CommandEnvironmentTest, ItsOwnErrorsEndAnEpisode) {
  const auto environment = start("scripted");
  const std::string opened = R"(["{\"open\": N}"], )";
  open_episode(*environment, 1,
               says(opened + R"(["{\"step\": N, \"error\": \"no such\\ntool\"}"])"));
  const Error error = error_of([&] { step_episode(*environment, 1); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message(), "tools/0: episode 1: no such\ntool");
  EXPECT_EQ(error_of([&] { close_episode(*environment, 1); }).message(),
            "tools/0: episode 1 is not open");

  // At its beginning, too, and at its end.
  const Error refused = error_of(
      [&] { open_episode(*environment, 2, says(R"(["{\"open\": N, \"error\": \"no task\"}"])")); });
  EXPECT_EQ(refused.message(), "tools/0: episode 2: no task");
  open_episode(*environment, 3, says(opened + R"(["{\"close\": N, \"error\": \"no judge\"}"])"));
  EXPECT_EQ(error_of([&] { close_episode(*environment, 3); }).message(),
            "tools/0: episode 3: no judge");
}

TEST_F(CommandEnvironmentTest, ALateAnswerIsTakenForNoOther) {
  // The first episode is slow once, the second is not: so the program is heard meanwhile.
  const auto environment = start("scripted", seconds(4) * test::kSlowness);
  const std::string pause = std::to_string(5 * test::kSlowness) + ".0";
  const std::string slow = R"(["{\"open\": N}"], ["{\"open\": 2}", )" + pause +
                           R"(, "{\"step\": N, \"messages\": [], \"done\": true}"],)" +
                           R"( ["{\"close\": N, \"reward\": 5}"])";
  open_episode(*environment, 1, says(slow));
  auto open = environment->open(
      {.episode = 2, .seed = 0, .row = says(R"([], ["{\"close\": N}"])")});
  auto step = environment->step(turn_of(1));
  open.get(patience());
  const Error error = error_of([&] { step.get(patience()); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_NE(error.message().find("\"step\" of episode 1 is not answered after"),
            std::string::npos)
      << error.message();

  // Answers to the step and to the close, which was sent by itself, come and are dropped.
  const auto closed = [&] { return close_episode(*environment, 2); };
  EXPECT_EQ(test::thrown(closed).has_value(), false);
  EXPECT_EQ(open_episode(*environment, 1, says(R"(["{\"open\": N}"], ["{\"close\": N}"])")).tools,
            "[]");
  close_episode(*environment, 1);
}

TEST_F(CommandEnvironmentTest, SilenceEndsTheProgram) {
  for (const char* part : {"silent", "hangs_in_half_line"}) {
    EnvironmentOptions options = player(part, folder_ / (std::string(part) + ".mark"));
    const auto environment = start(options, seconds(4) * test::kSlowness);
    open_episode(*environment, 1);
    open_episode(*environment, 2);
    const auto began = Deadline::Clock::now();
    const Error error = error_of([&] { step_episode(*environment, 1); });
    EXPECT_EQ(error.code(), ErrorCode::kTimeout) << part;
    EXPECT_GE(Deadline::Clock::now() - began, seconds(3)) << part;
    EXPECT_LT(Deadline::Clock::now() - began, seconds(60) * test::kSlowness) << part;

    // The other one went with it, and says so when it is asked.
    const Error lost = error_of([&] { step_episode(*environment, 2); });
    EXPECT_EQ(lost.code(), ErrorCode::kPeerLost) << part << ": " << lost.message();
    EXPECT_NE(lost.message().find("it said nothing for"), std::string::npos) << lost.message();
    EXPECT_EQ(error_of([&] { step_episode(*environment, 2); }).message(),
              "tools/0: episode 2 is not open");

    // The next one starts the program again, whose mark says that it is the second.
    open_episode(*environment, 1);
    EXPECT_EQ(step_episode(*environment, 1, 3).done, true) << part;
    close_episode(*environment, 1);
  }
}

TEST_F(CommandEnvironmentTest, DeathIsReportedWithItsCause) {
  const std::pair<const char*, const char*> parts[] = {
      {"exits", "it exited with code 3; the last it wrote to stderr:\nTraceback: no such module"},
      {"half_line", "it exited with code 3; line 4 has no end: '{\"step\": 1, \"mess'"},
      {"killed", "it was killed by signal 9"},
      {"closes_stdin", "it closed its stdin"},
      {"closes_stdout", "it closed its stdout"},
  };
  for (const auto& [part, text] : parts) {
    EnvironmentOptions options = player(part, folder_ / (std::string(part) + ".mark"));
    const auto environment = start(options);
    open_episode(*environment, 1);
    auto other = environment->open({.episode = 2, .seed = 0, .row = "{}"});
    other.get(patience());
    const Error error = error_of([&] { step_episode(*environment, 1); });
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << part;
    EXPECT_NE(error.message().find(text), std::string::npos) << part << ": " << error.message();
    EXPECT_EQ(error_of([&] { close_episode(*environment, 2); }).code(), ErrorCode::kPeerLost);

    // Begun anew, by the same number, in a new process.
    open_episode(*environment, 1);
    EXPECT_EQ(step_episode(*environment, 1, 1, kEchoCall).done, false) << part;
    EXPECT_EQ(close_episode(*environment, 1).reward, 3 / 8.0) << part;
  }
}

TEST_F(CommandEnvironmentTest, AProgramThatNeverOpensIsGivenUp) {
  const std::pair<const char*, ErrorCode> parts[] = {{"exits_at_once", ErrorCode::kPeerLost},
                                                     {"no_hello", ErrorCode::kCorrupt},
                                                     {"version", ErrorCode::kMismatch}};
  for (const auto& [part, code] : parts) {
    const auto environment = start(part);
    const Error error = error_of([&] { environment->info(); });
    EXPECT_EQ(error.code(), code) << part << ": " << error.message();
    Error last = error;
    for (int i = 0; i < 10 && last.message().find("not started again") == std::string::npos; ++i)
      last = error_of([&] { open_episode(*environment, 1); });
    EXPECT_EQ(last.code(), ErrorCode::kPeerLost) << part;
    EXPECT_NE(last.message().find("it ended 3 times in a row before it had opened an episode"),
              std::string::npos)
        << part << ": " << last.message();
  }
  EXPECT_NE(error_of([] { start("version")->info(); })
                .message()
                .find("line 1 speaks version '2' of the protocol; expected"),
            std::string::npos);
}

TEST_F(CommandEnvironmentTest, TheStartHasADeadline) {
  EnvironmentOptions options = player("silent_hello");
  options.start_timeout = milliseconds(500);
  const auto environment = start(options);
  const Error error = error_of([&] { environment->info(); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_NE(error.message().find("no first line after 500ms (start_timeout)"), std::string::npos)
      << error.message();
  EXPECT_NE(error.message().find("a program must flush its lines"), std::string::npos)
      << error.message();
}

TEST_F(CommandEnvironmentTest, RefusesCallsThatCannotBe) {
  const auto environment = start("honest");
  open_episode(*environment, 1);
  EXPECT_EQ(error_of([&] { open_episode(*environment, 1); }).message(),
            "tools/0: episode 1 is open already");
  EXPECT_EQ(error_of([&] { step_episode(*environment, 2); }).message(),
            "tools/0: episode 2 is not open");
  EXPECT_NE(error_of([&] { open_episode(*environment, 3, "[]"); })
                .message()
                .find("the row of an episode is no JSON object: '[]'"),
            std::string::npos);
  const std::string row = R"({"text": ")" + std::string(2 << 20, 'c') + R"("})";
  const Error big = error_of([&] { open_episode(*environment, 4, row); });
  EXPECT_EQ(big.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(big.message().find("at most 1048576 are sent"), std::string::npos) << big.message();

  // A step that was refused ended its episode.
  EXPECT_EQ(error_of([&] { step_episode(*environment, 1, 1, "{}"); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { close_episode(*environment, 1); }).message(),
            "tools/0: episode 1 is not open");
  EXPECT_EQ(error_of([] {
              EnvironmentOptions options;
              options.command = {"/no/such/program"};
              start(options);
            }).message(),
            "tools/0: cannot start '/no/such/program': No such file or directory");
}

TEST_F(CommandEnvironmentTest, ClosesInTheMiddleOfAStep) {
  const auto environment = start("scripted");
  open_episode(*environment, 1,
               says(R"(["{\"open\": N}"], [0.5, "{\"step\": N, \"done\": true}"],)"
                    R"( ["{\"close\": N, \"reward\": 2}"])"));
  auto step = environment->step(turn_of(1));
  EXPECT_EQ(error_of([&] { step_episode(*environment, 1); }).code(), ErrorCode::kInvalidArgument)
      << "one call at a time";
  auto closed = environment->close({.episode = 1});
  EXPECT_EQ(error_of([&] { step.get(patience()); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(closed.get(patience()).reward, 2.0);
}

// A program that does several things at once may close an episode while it still works on a step.
TEST_F(CommandEnvironmentTest, AnAnswerMayComeBehindThatOfTheClose) {
  const auto environment = start("scripted");
  const std::string opened = R"(["{\"open\": N}"], )", closed = R"(["{\"close\": N}"])";
  open_episode(*environment, 1,
               says(opened + R"([], ["{\"close\": N, \"reward\": 2}",)" +
                    R"( "{\"step\": N, \"messages\": [], \"done\": true}"])"));
  open_episode(*environment, 2, says(opened + closed));
  auto step = environment->step(turn_of(1));
  auto end = environment->close({.episode = 1});
  EXPECT_EQ(error_of([&] { step.get(patience()); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(end.get(patience()).reward, 2.0);
  close_episode(*environment, 2);

  // One that it opens only after that is closed once more.
  const std::string late =
      R"([], ["{\"close\": N, \"error\": \"not open\"}", "{\"open\": N}"], )";
  auto open = environment->open({.episode = 3, .seed = 0, .row = says(late + closed)});
  auto refused = environment->close({.episode = 3});
  EXPECT_EQ(error_of([&] { open.get(patience()); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(error_of([&] { refused.get(patience()); }).message(), "tools/0: episode 3: not open");
  for (uint64_t episode = 4; episode <= 5; ++episode) {
    open_episode(*environment, episode, says(opened + closed));
    close_episode(*environment, episode);
  }
}

TEST_F(CommandEnvironmentTest, StopEndsWhatWaits) {
  const auto environment = start("silent");
  open_episode(*environment, 1);
  auto step = environment->step(turn_of(1));
  environment->stop();
  EXPECT_EQ(error_of([&] { step.get(patience()); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(error_of([&] { open_episode(*environment, 2); }).code(), ErrorCode::kCancelled);
  EXPECT_EQ(error_of([&] { close_episode(*environment, 1); }).code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace retort::environments
