// Decodes: a line of an environment (environments/detail/protocol.h), its first one where an 'h'
//   stands before it.
// Holds: what is taken are arrays and objects of JSON that read back as they are, a finite reward,
//   failed calls that are not more than the messages. Errors stay short.
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/error.h"
#include "environments/detail/protocol.h"
#include "tests/fuzz/target_list.h"

namespace retort::fuzz::environment_answer {
namespace {

using environments::detail::AnswerLine;
using environments::detail::Verb;
using Json = nlohmann::ordered_json;

constexpr size_t kLongestError = 4096;

Json array_of(const std::string& text) {
  const Json read = Json::parse(text, nullptr, false);
  expect(read.is_array(), "no array");
  expect(read.dump() == text, "an array that reads back as another");
  return read;
}

void check_reply(const AnswerLine& line) {
  expect(line.reply.index() == static_cast<size_t>(line.verb), "a reply to another verb");
  if (const auto* opened = std::get_if<roles::OpenedEpisode>(&line.reply)) {
    for (const Json& tool : array_of(opened->tools))
      expect(tool.is_object(), "a tool that is no object");
    for (const Json& message : array_of(opened->messages))
      expect(message.is_object(), "a message that is no object");
  } else if (const auto* stepped = std::get_if<roles::EpisodeAnswer>(&line.reply)) {
    const Json messages = array_of(stepped->messages);
    expect(stepped->done || !messages.empty(), "no messages");
    expect(stepped->failed_calls >= 0 &&
               stepped->failed_calls <= static_cast<int64_t>(messages.size()),
           "more failed calls than messages");
  } else {
    const auto& closed = std::get<roles::ClosedEpisode>(line.reply);
    expect(!closed.reward || std::isfinite(*closed.reward), "a reward that is not finite");
    const Json metrics = Json::parse(closed.metrics, nullptr, false);
    expect(metrics.is_object(), "metrics that are no object");
    for (const Json& value : metrics)
      expect(value.is_number() && std::isfinite(value.get<double>()), "a metric that is none");
  }
}

bool decode_line(std::string_view line) {
  if (!line.empty() && line.front() == 'h') {
    environments::detail::read_hello(line.substr(1));
    return true;
  }
  const AnswerLine answer = environments::detail::read_answer(line);
  expect(answer.words.size() < 4 * kLongestError, "words that were not cut");
  expect(answer.wrong.size() < kLongestError, "a reason that quotes all it was given");
  if (!answer.wrong.empty()) return false;
  if (!answer.refused) check_reply(answer);
  return true;
}

bool decode(std::string_view bytes) {
  try {
    return decode_line(bytes);
  } catch (const Error& error) {
    expect(error.message().size() < kLongestError, "an error that quotes all it was given");
    throw;
  }
}

std::vector<Seed> seeds() {
  return {
      {"hello", R"(h{"retort_environment": 1, "user_turns": true})"},
      {"open", R"({"open": 1, "tools": [{"type": "function", "function": {"name": "add",)"
               R"( "parameters": {"type": "object"}}}], "messages": [{"role": "user",)"
               R"( "content": "go"}], "append": " x"})"},
      {"step", R"({"step": 2, "messages": [{"role": "tool", "name": "add", "content": "5"},)"
               R"( {"role": "user", "content": [{"type": "text", "text": "\u00e9"}]}],)"
               R"( "failed_calls": 1, "done": false})"},
      {"close", R"({"close": 3, "reward": 0.25, "metrics": {"solved": 1, "moves": 1e3}})"},
      {"error", R"({"step": 4, "error": "no such tool"})"},
  };
}

}  // namespace

Target target() { return {"environment_answer", decode, seeds}; }

}  // namespace retort::fuzz::environment_answer
