#include "environments/detail/protocol.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace retort::environments::detail {
namespace {

// The order of keys stays as it came: chat templates write schemas of tools as they are.
using Json = nlohmann::ordered_json;

// An object of that many keys is looked through once for each of them.
constexpr size_t kMaxKeys = 10'000;
constexpr size_t kMaxTools = 1'000;
constexpr size_t kMaxMessages = 1'000;
constexpr size_t kMaxMetrics = 100;
constexpr size_t kMaxNameBytes = 100;
constexpr size_t kMaxWordsBytes = 2'000;
constexpr size_t kQuotedBytes = 200;

[[noreturn]] void wrong(const std::string& why) { throw Error(ErrorCode::kCorrupt, why); }

// Colons outside strings: no object of the text has more keys.
size_t count_keys(std::string_view text) {
  size_t count = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\')
      ++i;
    else if (text[i] == '"')
      quoted = !quoted;
    else if (!quoted && text[i] == ':')
      ++count;
  }
  return count;
}

// A JSON text; no object where it is none, or one that would take long to read.
Json parse_text(std::string_view text) {
  if (json_nesting(text) > kMaxJsonNesting || count_keys(text) > kMaxKeys) return Json(nullptr);
  return Json::parse(text.begin(), text.end(), nullptr, false);
}

std::string fitting(std::string line, const std::string& what) {
  if (line.size() <= kMaxLineBytes) return line;
  throw Error(ErrorCode::kInvalidArgument,
              what + " has " + std::to_string(line.size()) + " bytes as a line of JSON; at most " +
                  std::to_string(kMaxLineBytes) + " are sent to an environment");
}

std::string line_of(const Json& object, const std::string& what) {
  return fitting(object.dump(-1, ' ', false, Json::error_handler_t::replace), what);
}

// JSON text on one line, its numbers with all the digits that were written: a parser's double has
// not all of those that a row or a model has.
std::string one_line(std::string_view json) {
  std::string line;
  line.reserve(json.size());
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (!quoted && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) continue;
    line += c;
    if (quoted && c == '\\' && i + 1 < json.size())
      line += json[++i];
    else if (c == '"')
      quoted = !quoted;
  }
  return line;
}

// Its keys are those: a misspelt one would be taken for left out.
void check_keys(const Json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    std::string names;
    for (const std::string_view name : known) {
      found = found || key == name;
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    if (!found) wrong("has a key " + quoted_line(key) + "; there are " + names);
  }
}

const Json* find(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

// The array of a key as text, "[]" where it is left out.
std::string array_text(const Json& object, const char* key, size_t most,
                       void (*check)(const Json& entry, const std::string& name)) {
  const Json* list = find(object, key);
  if (list == nullptr) return "[]";
  if (!list->is_array()) wrong(std::string(key) + " is no array");
  if (list->size() > most)
    wrong(std::string(key) + " has " + std::to_string(list->size()) + " entries; at most " +
          std::to_string(most) + " are taken");
  for (size_t i = 0; i < list->size(); ++i)
    check((*list)[i], std::string(key) + "[" + std::to_string(i) + "]");
  return list->dump();
}

void check_tool(const Json& tool, const std::string& name) {
  if (!tool.is_object()) wrong(name + " is no object; expected the schema of a tool");
  // {"type": "function", "function": {...}}, or what stands inside alone.
  const Json* function = find(tool, "function");
  if (function != nullptr && !function->is_object()) wrong(name + ".function is no object");
  const Json* called = find(function != nullptr ? *function : tool, "name");
  if (called == nullptr || !called->is_string() || called->get_ref<const std::string&>().empty())
    wrong(name + " has no name");
}

// Of what the environment says: who says it, and the text.
void check_message(const Json& message, const std::string& name,
                   std::initializer_list<std::string_view> roles) {
  if (!message.is_object()) wrong(name + " is no object; expected a message");
  const Json* role = find(message, "role");
  std::string names;
  bool known = false;
  for (const std::string_view one : roles) {
    names += (names.empty() ? "" : " or ") + std::string(one);
    known = known ||
            (role != nullptr && role->is_string() && role->get_ref<const std::string&>() == one);
  }
  if (!known) wrong(name + ".role is not " + names);

  const Json* content = find(message, "content");
  if (content == nullptr || !(content->is_string() || content->is_array()))
    wrong(name + ".content is no text and no array of parts");
  for (const char* key : {"name", "tool_call_id"}) {
    const Json* text = find(message, key);
    if (text != nullptr && !text->is_string()) wrong(name + "." + key + " is no text");
  }
}
void check_opening_message(const Json& message, const std::string& name) {
  check_message(message, name, {"system", "user", "assistant"});
}
void check_turn_message(const Json& message, const std::string& name) {
  check_message(message, name, {"tool", "user"});
}

roles::OpenedEpisode read_opened(const Json& answer) {
  check_keys(answer, {"open", "tools", "messages", "append"});
  roles::OpenedEpisode opened;
  opened.tools = array_text(answer, "tools", kMaxTools, check_tool);
  opened.messages = array_text(answer, "messages", kMaxMessages, check_opening_message);
  if (const Json* text = find(answer, "append")) {
    if (!text->is_string()) wrong("append is no text");
    opened.append = text->get<std::string>();
  }
  return opened;
}

roles::EpisodeAnswer read_stepped(const Json& answer) {
  check_keys(answer, {"step", "messages", "done", "failed_calls"});
  roles::EpisodeAnswer stepped;
  stepped.messages = array_text(answer, "messages", kMaxMessages, check_turn_message);
  if (const Json* done = find(answer, "done")) {
    if (!done->is_boolean()) wrong("done is not true or false");
    stepped.done = done->get<bool>();
  }
  if (!stepped.done && stepped.messages == "[]")
    wrong("has no messages; expected one for each call, or \"done\": true");

  // As many as it has messages at most, so that a rate of failures stays one.
  const Json* failed = find(answer, "failed_calls");
  if (failed == nullptr) return stepped;
  const Json* messages = find(answer, "messages");
  const uint64_t most = messages == nullptr ? 0 : messages->size();
  if (!failed->is_number_unsigned() || failed->get<uint64_t>() > most)
    wrong("failed_calls is not a number from 0 to that of the messages");
  stepped.failed_calls = failed->get<int64_t>();
  return stepped;
}

roles::ClosedEpisode read_closed(const Json& answer) {
  check_keys(answer, {"close", "reward", "metrics"});
  roles::ClosedEpisode closed;
  const auto finite = [](const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  };
  if (const Json* reward = find(answer, "reward"); reward != nullptr && !reward->is_null()) {
    if (!finite(*reward)) wrong("reward is no finite number, nor null");
    closed.reward = reward->get<double>();
  }

  // Metrics become names of numbers of the run.
  const Json* metrics = find(answer, "metrics");
  if (metrics == nullptr) return closed;
  if (!metrics->is_object()) wrong("metrics is no object");
  if (metrics->size() > kMaxMetrics)
    wrong("metrics has more than " + std::to_string(kMaxMetrics) + " names");
  for (const auto& [name, value] : metrics->items()) {
    if (name.empty() || name.size() > kMaxNameBytes)
      wrong("metrics has a name of " + std::to_string(name.size()) + " bytes; expected 1 to " +
            std::to_string(kMaxNameBytes));
    if (!finite(value)) wrong("metrics." + printable(name) + " is no finite number");
  }
  closed.metrics = metrics->dump();
  return closed;
}

Reply read_reply(Verb verb, const Json& answer) {
  switch (verb) {
    case Verb::kOpen: return read_opened(answer);
    case Verb::kStep: return read_stepped(answer);
    case Verb::kClose: return read_closed(answer);
  }
  RETORT_CHECK(false) << "no verb";
  return {};
}

// Which call it answers.
AnswerLine read_heading(const Json& answer) {
  AnswerLine line;
  size_t count = 0;
  for (const Verb verb : {Verb::kOpen, Verb::kStep, Verb::kClose}) {
    const Json* number = find(answer, std::string(to_string(verb)).c_str());
    if (number == nullptr) continue;
    ++count;
    if (!number->is_number_unsigned())
      wrong("\"" + std::string(to_string(verb)) + "\" is not the number of an episode");
    line.verb = verb;
    line.number = number->get<uint64_t>();
  }
  if (count != 1) wrong("has not one of \"open\", \"step\" and \"close\"");
  return line;
}

}  // namespace

std::string_view to_string(Verb verb) {
  switch (verb) {
    case Verb::kOpen: return "open";
    case Verb::kStep: return "step";
    case Verb::kClose: return "close";
  }
  RETORT_CHECK(false) << "no verb";
  return "";
}

std::string quoted_line(std::string_view line) {
  const std::string shown = printable(line.substr(0, kQuotedBytes));
  return "'" + shown + (line.size() > kQuotedBytes ? "...'" : "'");
}

std::string hello_line(int64_t episodes) {
  Json line;
  line["retort_environment"] = kProtocolVersion;
  line["episodes"] = episodes;
  return line_of(line, "a greeting");
}

std::string open_line(uint64_t number, const roles::OpenEpisode& request) {
  if (!Json::parse(request.row, nullptr, false).is_object())
    throw Error(ErrorCode::kInvalidArgument,
                "the row of an episode is no JSON object: " + quoted_line(request.row));
  JsonLine line;
  line.raw("open", std::to_string(number))
      .raw("row", request.row)
      .raw("seed", std::to_string(request.seed));
  return fitting(one_line(line.str()), "the row of an episode");
}

std::string step_line(uint64_t number, const roles::EpisodeTurn& turn) {
  if (!Json::parse(turn.calls, nullptr, false).is_array())
    throw Error(ErrorCode::kInvalidArgument,
                "the calls of a turn are no JSON array: " + quoted_line(turn.calls));
  JsonLine line;
  line.raw("step", std::to_string(number))
      .add("turn", turn.turn)
      .raw("text", Json(turn.text).dump(-1, ' ', false, Json::error_handler_t::replace))
      .raw("calls", turn.calls);
  return fitting(one_line(line.str()), "a turn of the model");
}

std::string close_line(uint64_t number) {
  Json line;
  line["close"] = number;
  return line_of(line, "a close");
}

Hello read_hello(std::string_view line) {
  const std::string expected = "; expected {\"retort_environment\": 1, \"user_turns\": false}";
  const Json hello = parse_text(line);
  const Json* version = hello.is_object() ? find(hello, "retort_environment") : nullptr;
  if (version == nullptr) wrong("is no greeting" + expected);
  if (!version->is_number_integer() || version->get<int64_t>() != kProtocolVersion)
    throw Error(ErrorCode::kMismatch,
                "speaks version " + quoted_line(version->dump()) + " of the protocol" + expected);
  check_keys(hello, {"retort_environment", "user_turns", "name"});
  Hello result;
  if (const Json* user_turns = find(hello, "user_turns")) {
    if (!user_turns->is_boolean()) wrong("user_turns is not true or false" + expected);
    result.user_turns = user_turns->get<bool>();
  }
  return result;
}

AnswerLine read_answer(std::string_view line) {
  const Json answer = parse_text(line);
  if (!answer.is_object()) wrong("is no JSON object that can be read");
  AnswerLine result = read_heading(answer);

  // From here on a mistake is that of one call.
  try {
    if (const Json* error = find(answer, "error")) {
      check_keys(answer, {to_string(result.verb), "error"});
      if (!error->is_string()) wrong("error is no text");
      result.refused = true;
      result.words = printable(error->get_ref<const std::string&>().substr(0, kMaxWordsBytes),
                               LineEnds::kKept);
      return result;
    }
    result.reply = read_reply(result.verb, answer);
  } catch (const Error& mistake) {
    result.wrong = mistake.message();
  }
  return result;
}

}  // namespace retort::environments::detail
