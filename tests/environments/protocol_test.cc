// What a line must be, and what stands in a request.
#include "environments/detail/protocol.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"
#include "tests/support/thrown.h"

namespace retort::environments::detail {
namespace {
using test::message_of;

TEST(Protocol, WritesRequests) {
  EXPECT_EQ(hello_line(32), R"({"retort_environment":1,"episodes":32})");
  EXPECT_EQ(open_line(7, {.episode = 9, .seed = UINT64_MAX, .row = "{ \"b\": 1,\n\"a\": [2.5] }"}),
            R"({"open":7,"row":{"b":1,"a":[2.5]},"seed":18446744073709551615})")
      << "on one line, keys in their order, and the wire's number";
  EXPECT_EQ(step_line(7, {.episode = 9,
                          .turn = 2,
                          .text = "a\n\xff",
                          .calls = R"([{"id": "c0", "name": "f", "arguments": {}}])"}),
            "{\"step\":7,\"turn\":2,\"text\":\"a\\n\xef\xbf\xbd\",\"calls\":"
            "[{\"id\":\"c0\",\"name\":\"f\",\"arguments\":{}}]}");
  EXPECT_EQ(close_line(7), R"({"close":7})");
}

TEST(Protocol, RequestsKeepTheDigitsOfNumbers) {
  const std::string long_one = "123456789012345678901234567890";
  EXPECT_EQ(open_line(1, {.episode = 1, .seed = 2, .row = "{\"a b\" : " + long_one + " }"}),
            "{\"open\":1,\"row\":{\"a b\":" + long_one + "},\"seed\":2}");
  const std::string calls =
      R"([{"id":"c0","name":"f","arguments":{"q":"\" [ \\","a":1.50,"n":)" + long_one + "}}]";
  EXPECT_NE(
      step_line(1, {.episode = 1, .turn = 1, .calls = calls}).find("\"calls\":" + calls + "}"),
      std::string::npos);
}

TEST(Protocol, ReadsAnswers) {
  const AnswerLine opened = read_answer(
      R"({"open": 1, "tools": [{"name": "f"}], "append": " go",)"
      R"( "messages": [{"role": "system", "content": [{"type": "text", "text": "é"}]}]})");
  EXPECT_EQ(opened.verb, Verb::kOpen);
  EXPECT_EQ(opened.number, 1u);
  EXPECT_EQ(opened.wrong, "");
  const auto& open = std::get<roles::OpenedEpisode>(opened.reply);
  EXPECT_EQ(open.tools, R"([{"name":"f"}])");
  EXPECT_EQ(open.append, " go");
  EXPECT_EQ(open.messages, R"([{"role":"system","content":[{"type":"text","text":"é"}]}])");

  // A step and a close, with all that they may have and with what they must.
  const auto step = std::get<roles::EpisodeAnswer>(
      read_answer(R"({"messages": [{"role": "tool", "content": "x"}], "failed_calls": 1,)"
                  R"( "step": 18446744073709551615})")
          .reply);
  EXPECT_EQ(step.failed_calls, 1);
  EXPECT_FALSE(step.done);
  EXPECT_TRUE(
      std::get<roles::EpisodeAnswer>(read_answer(R"({"step": 1, "done": true})").reply).done);
  const auto close = std::get<roles::ClosedEpisode>(
      read_answer(R"({"close": 3, "reward": -1, "metrics": {"b": 2, "a": 0.5}})").reply);
  EXPECT_EQ(close.reward, -1.0);
  EXPECT_EQ(close.metrics, R"({"b":2,"a":0.5})");
  const auto bare =
      std::get<roles::ClosedEpisode>(read_answer(R"({"close": 3, "reward": null})").reply);
  EXPECT_EQ(bare.reward, std::nullopt);
  EXPECT_EQ(bare.metrics, "{}");

  const AnswerLine refused = read_answer(R"({"step": 1, "error": "no\u001b[2J"})");
  EXPECT_TRUE(refused.refused);
  EXPECT_EQ(refused.words, "no\\x1b[2J") << "nothing that a terminal obeys";
}

TEST(Protocol, SaysWhatIsWrongWithACall) {
  const std::pair<std::string, const char*> lines[] = {
      {R"({"open": 1, "tools": {}})", "tools is no array"},
      {R"({"open": 1, "tools": ["f"]})", "tools[0] is no object"},
      {R"({"open": 1, "tools": [{"type": "function", "function": {}}]})", "tools[0] has no name"},
      {R"({"open": 1, "tools": [{"function": 1}]})", "tools[0].function is no object"},
      {R"({"open": 1, "messages": [{"role": "tool", "content": ""}]})",
       "messages[0].role is not system or user or assistant"},
      {R"({"open": 1, "append": 1})", "append is no text"},
      {R"({"open": 1, "error": 1})", "error is no text"},
      {R"({"open": 1, "error": "", "tools": []})", "has a key 'tools'; there are open, error"},
      {R"({"step": 1, "messages": [{"role": "user", "content": 1}]})", "content is no text"},
      {R"({"step": 1, "messages": [{"role": "tool", "content": "", "name": 1}]})",
       "messages[0].name is no text"},
      {R"({"close": 1, "reward": "1"})", "reward is no finite number, nor null"},
      {R"({"close": 1, "metrics": []})", "metrics is no object"},
      {R"({"close": 1, "metrics": {"a": true}})", "metrics.a is no finite number"},
      {R"({"close": 1, "metrics": {"": 1}})", "metrics has a name of 0 bytes"},
      {R"({"close": 1, "rewards": 1})", "has a key 'rewards'; there are close, reward, metrics"},
  };
  for (const auto& [line, text] : lines) {
    const AnswerLine answer = read_answer(line);
    EXPECT_EQ(answer.number, 1u) << line;
    EXPECT_NE(answer.wrong.find(text), std::string::npos) << line << ": " << answer.wrong;
  }
}

TEST(Protocol, HasLimits) {
  std::string messages;
  for (int i = 0; i < 1001; ++i)
    messages += std::string(i == 0 ? "" : ",") + R"({"role":"user","content":""})";
  EXPECT_EQ(read_answer(R"({"step":1,"messages":[)" + messages + "]}").wrong,
            "messages has 1001 entries; at most 1000 are taken");

  // A text with many colons is taken, an object with many keys is not even read.
  const std::string colons = R"({"step":1,"messages":[{"role":"user","content":")" +
                             std::string(500'000, ':') + "\\\"\"}]}";
  EXPECT_EQ(read_answer(colons).wrong, "");
  std::string keys;
  for (int i = 0; i < 10'001; ++i)
    keys += ",\"" + std::to_string(i) + "\":1";
  EXPECT_EQ(message_of([&] { read_answer("{\"step\":1" + keys + "}"); }, ErrorCode::kCorrupt),
            "is no JSON object that can be read");
  std::string metrics;
  for (int i = 0; i < 101; ++i)
    metrics += std::string(i == 0 ? "" : ",") + "\"m" + std::to_string(i) + "\":1";
  EXPECT_EQ(read_answer("{\"close\":1,\"metrics\":{" + metrics + "}}").wrong,
            "metrics has more than 100 names");
}

TEST(Protocol, ReadsGreetings) {
  EXPECT_FALSE(read_hello(R"({"retort_environment": 1})").user_turns);
  EXPECT_TRUE(read_hello(R"({"user_turns": true, "retort_environment": 1})").user_turns);
  for (const char* line : {"Welcome", "{}", "[1]", R"({"retort_environment": 1, "user_turns": 1})",
                           R"({"retort_environment": 1, "turns": true})"})
    message_of([&] { read_hello(line); }, ErrorCode::kCorrupt);
  for (const char* line : {R"({"retort_environment": 2})", R"({"retort_environment": "1"})"})
    EXPECT_NE(message_of([&] { read_hello(line); }, ErrorCode::kMismatch).find("speaks version"),
              std::string::npos);
}

}  // namespace
}  // namespace retort::environments::detail
