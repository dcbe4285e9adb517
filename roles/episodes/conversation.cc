#include "roles/episodes/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::roles {
namespace {

using Json = nlohmann::ordered_json;

// What a model says need not be UTF-8 when its tokens end inside a character.
std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

[[noreturn]] void refuse_words(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "environment: " + what);
}

// Discarded if it is no JSON, or nests deeper than a parser should go down.
Json json_of(std::string_view text) {
  if (json_nesting(text) > kMaxJsonNesting) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool is_message(const Json& value) {
  if (!value.is_object()) return false;
  const auto role = value.find("role");
  return role != value.end() && role->is_string();
}

bool has_role(const Json& message, const char* role) { return message.at("role") == role; }

// The messages that an environment brings.
Json parse_messages(std::string_view text, const std::string& what) {
  Json messages = json_of(text);
  if (!messages.is_array()) refuse_words(what + " is no JSON array of messages");
  for (const Json& message : messages)
    if (!is_message(message))
      refuse_words(what + " has an entry that is no message: it lacks a role");
  return messages;
}

Json parse_answers(std::string_view text) {
  Json messages = parse_messages(text, "the answer to a turn");
  for (const Json& message : messages)
    if (!has_role(message, "tool") && !has_role(message, "user"))
      refuse_words("a turn was answered by the role '" + message.at("role").get<std::string>() +
                   "'; expected 'tool' or 'user'");
  return messages;
}

// Content is text, or a list of parts, which text goes behind as one of its own.
void append_text(Json& message, const std::string& text) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string())
    *content = content->get<std::string>() + text;
  else if (content != message.end() && content->is_array())
    content->push_back({{"type", "text"}, {"text", text}});
  else
    refuse_words("an episode begins with text behind a message that has no content");
}

}  // namespace

Conversation::Conversation(std::string_view row, std::string_view given) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "generator.submit: an episode's row " + what);
  };
  const Json columns = json_of(row);
  if (!columns.is_object()) refuse("is no JSON object");
  const bool of_the_row = given.empty();
  Json messages = of_the_row ? columns.value("messages", Json()) : json_of(given);
  if (!messages.is_array() || messages.empty())
    refuse("has no messages, with which its prompt begins");
  for (const Json& message : messages)
    if (!is_message(message)) refuse("has an entry in messages without a role");
  if (of_the_row && messages.size() > 1 && has_role(messages.back(), "assistant"))
    messages.erase(messages.size() - 1);
  for (const Json& message : messages)
    messages_.push_back(dumped(message));

  const auto kwargs = columns.find("chat_template_kwargs");
  if (kwargs == columns.end() || kwargs->is_null()) return;
  if (!kwargs->is_object()) refuse("has chat_template_kwargs that are no object");
  kwargs_ = dumped(*kwargs);
}

void Conversation::open(const OpenedEpisode& opened) {
  const Json tools = json_of(opened.tools);
  if (!tools.is_array()) refuse_words("the tools of an episode are no JSON array");
  for (const Json& tool : tools)
    if (!tool.is_object()) refuse_words("a tool's schema is no JSON object");
  tools_ = dumped(tools);

  if (!opened.append.empty()) {
    Json last = Json::parse(messages_.back());
    append_text(last, opened.append);
    messages_.back() = dumped(last);
  }
  for (const Json& message : parse_messages(opened.messages, "the beginning of an episode"))
    messages_.push_back(dumped(message));
}

void Conversation::add_turn(const models::ParsedTurn& turn) {
  text_ = turn.content;
  num_calls_ = static_cast<int64_t>(turn.calls.size());
  JsonLine message;
  message.add("role", "assistant").raw("content", dumped(turn.content));
  if (!turn.thought.empty()) message.raw("reasoning_content", dumped(turn.thought));

  // Arguments stay the text that they are: a parser's double has not all digits of a number.
  std::vector<std::string> calls, said;
  for (const models::ToolCall& call : turn.calls) {
    const std::string id = "c" + std::to_string(next_call_++);
    const std::string name = dumped(call.name);
    calls.push_back(
        JsonLine().add("id", id).raw("name", name).raw("arguments", call.arguments).str());
    said.push_back(
        JsonLine()
            .add("type", "function")
            .add("id", id)
            .raw("function", JsonLine().raw("name", name).raw("arguments", call.arguments).str())
            .str());
  }

  const auto as_it_is = [](const std::string& json) { return json; };
  calls_ = json_array(calls, as_it_is);
  if (!said.empty()) message.raw("tool_calls", json_array(said, as_it_is));
  messages_.push_back(message.str());
}

void Conversation::add_answers(std::string_view messages_json) {
  for (const Json& message : parse_answers(messages_json))
    messages_.push_back(dumped(message));
}

std::string Conversation::messages() const {
  return json_array(messages_, [](const std::string& message) { return message; });
}

std::string Conversation::variables() const {
  Json variables = Json::parse(kwargs_);
  Json tools = Json::parse(tools_);
  if (!tools.empty()) variables["tools"] = std::move(tools);
  return dumped(variables);
}

bool has_readable_calls(const models::ParsedTurn& turn) {
  return std::all_of(turn.calls.begin(), turn.calls.end(), [](const models::ToolCall& call) {
    return json_of(call.arguments).is_object();
  });
}

void check_answers(std::string_view messages_json, int64_t num_calls) {
  const Json messages = parse_answers(messages_json);
  if (messages.empty())
    refuse_words("a turn was answered with no message, though the episode goes on");

  const auto is_result = [](const Json& message) { return has_role(message, "tool"); };
  const int64_t tools = std::count_if(messages.begin(), messages.end(), is_result);
  const int64_t leading =
      std::find_if_not(messages.begin(), messages.end(), is_result) - messages.begin();
  if (leading != num_calls || tools != num_calls)
    refuse_words("a turn with " + std::to_string(num_calls) + " calls was answered with " +
                 std::to_string(tools) + " messages of the role tool, " + std::to_string(leading) +
                 " of them first; expected one for each call, before any others");
}

}  // namespace retort::roles
