#include "models/text/turn_suffix.h"

#include <nlohmann/json.hpp>

#include <array>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace retort::models {
namespace {

using Messages = nlohmann::ordered_json;

// Letters alone: no template and no JSON writes them in another way.
constexpr std::string_view kSaid = "retortsentinelofaturn";
constexpr std::string_view kResult = "retortsentinelofaresult";

// Tokens that end turns in published templates; the tokenizer's own end token is one, too.
constexpr std::array<std::string_view, 14> kTurnEnds{"<|im_end|>",
                                                     "<|eot_id|>",
                                                     "<|eom_id|>",
                                                     "<|eot|>",
                                                     "<|end|>",
                                                     "<|call|>",
                                                     "<|return|>",
                                                     "<|endoftext|>",
                                                     "<|end_of_text|>",
                                                     "<end_of_turn>",
                                                     "<turn|>",
                                                     "<|END_OF_TURN_TOKEN|>",
                                                     "<｜end▁of▁sentence｜>",
                                                     "</s>"};

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument,
              "the chat template " + reason +
                  "; episodes of several turns need one that prints what an assistant says, its "
                  "tool calls and their results, and that ends every turn with a token of the "
                  "tokenizer");
}

// The text behind a turn, from the token that ends it.
struct Behind {
  std::string text;
  std::string end;  // that token's, with which the text begins

  std::string_view suffix() const { return std::string_view(text).substr(end.size()); }
};

// What follows the sentinel, which the template must have printed; none: no token ends the turn.
std::optional<Behind> behind_turn(const std::string& rendered, const std::string& eos) {
  const size_t said = rendered.find(kSaid);
  size_t first = std::string::npos;
  std::string end;
  const auto look = [&](std::string_view token) {
    const size_t at = rendered.find(token, said);
    if (at >= first) return;
    first = at;
    end = token;
  };
  for (const std::string_view token : kTurnEnds)
    look(token);
  if (!eos.empty()) look(eos);
  if (first == std::string::npos) return std::nullopt;
  return Behind{rendered.substr(first), end};
}

// What stands behind a turn with one call of a tool.
Messages one_result() {
  Messages results = Messages::array();
  results.push_back({{"role", "tool"},
                     {"name", "dummy"},
                     {"tool_call_id", "call00000"},
                     {"content", std::string(kResult)}});
  return results;
}

bool ends_in_thought(std::string_view suffix) {
  const size_t opened = suffix.rfind("<think>");
  const size_t closed = suffix.rfind("</think>");
  return opened != suffix.npos && (closed == suffix.npos || closed < opened);
}

}  // namespace

struct TurnSuffix::Impl {
  ChatTemplate chat;
  Tokenizer tokenizer;
  int32_t end_of_turn = -1;
  bool opens_thought = false;  // without variables

  Behind behind(const Messages& answers, std::string_view variables_json) const;

 private:
  std::string render(const Messages& turn, const Messages& answers,
                     std::string_view variables_json) const;
};

std::string TurnSuffix::Impl::render(const Messages& turn, const Messages& answers,
                                     std::string_view variables_json) const {
  Messages messages = Messages::array();
  messages.push_back({{"role", "user"}, {"content", "dummy"}});
  messages.push_back(turn);
  for (const Messages& answer : answers)
    messages.push_back(answer);

  return chat.render(messages.dump(), /*add_generation_prompt=*/true, variables_json).text;
}

Behind TurnSuffix::Impl::behind(const Messages& answers, std::string_view variables_json) const {
  const std::string said(kSaid);
  Messages turn = {{"role", "assistant"}, {"content", said}};
  const bool calls = answers.at(0).value("role", "") == "tool";
  if (calls) {
    // The name and id of the first result, because some templates look for the call of a result.
    const auto text_of = [&](const char* key, const char* otherwise) {
      const auto found = answers.at(0).find(key);
      const bool text = found != answers.at(0).end() && found->is_string();
      return text ? found->get<std::string>() : std::string(otherwise);
    };
    const Messages function = {{"name", text_of("name", "dummy")},
                               {"arguments", {{"value", said}}}};
    turn["content"] = "";
    turn["tool_calls"] = Messages::array();
    turn["tool_calls"].push_back({{"id", text_of("tool_call_id", "call00000")},
                                  {"type", "function"},
                                  {"function", function}});
  }

  std::string rendered;
  try {
    rendered = render(turn, answers, variables_json);
  } catch (const Error& error) {
    if (!calls) throw;
    // DeepSeek V3's writes arguments as a text and takes no object.
    Messages& arguments = turn["tool_calls"][0]["function"]["arguments"];
    arguments = Messages(arguments.dump());
    try {
      rendered = render(turn, answers, variables_json);
    } catch (const Error&) {
      throw Error(error);  // the words of what is asked for
    }
  }

  const int32_t eos = tokenizer.eos_id();
  if (rendered.find(kSaid) == std::string::npos)
    refuse(std::string("leaves out ") +
           (calls ? "an assistant's tool calls" : "an assistant's text"));
  std::optional<Behind> found =
      behind_turn(rendered, eos < 0 ? std::string() : tokenizer.id_to_token(eos));
  if (!found)
    refuse(std::string("has no end-of-turn token after an assistant's ") +
           (calls ? "tool call" : "text"));
  return *found;
}

TurnSuffix::TurnSuffix(ChatTemplate chat, Tokenizer tokenizer) {
  if (!chat.exists())
    throw Error(ErrorCode::kInvalidArgument,
                "the model folder has no chat template, which says what stands between turns");
  auto impl = std::make_shared<Impl>(Impl{std::move(chat), std::move(tokenizer)});

  std::optional<Behind> behind;
  try {
    behind = impl->behind(one_result(), "{}");
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("turns with calls of tools cannot be joined: ") + error.message());
  }

  // A result that stands before the end-of-turn token is the model's own turn going on.
  if (behind->suffix().find(kResult) == std::string_view::npos)
    refuse("has no end-of-turn token between an assistant's tool call and its result");
  impl->end_of_turn = impl->tokenizer.token_to_id(behind->end);
  if (impl->end_of_turn < 0)
    refuse("ends turns with \"" + behind->end + "\", which is no token of the tokenizer");

  impl->opens_thought = ends_in_thought(behind->suffix());
  impl_ = std::move(impl);
}

int32_t TurnSuffix::end_of_turn() const { return impl_->end_of_turn; }

bool TurnSuffix::opens_thought(std::string_view variables_json) const {
  if (variables_json == "{}") return impl_->opens_thought;
  return ends_in_thought(impl_->behind(one_result(), variables_json).suffix());
}

std::vector<int32_t> TurnSuffix::ids(std::string_view messages_json,
                                     std::string_view variables_json) const {
  const bool deep = json_nesting(messages_json) > kMaxJsonNesting;
  const Messages answers =
      deep ? Messages() : Messages::parse(messages_json, nullptr, /*allow_exceptions=*/false);
  bool taken = answers.is_array() && !answers.empty();
  for (const Messages& answer : answers) {
    const auto role = taken && answer.is_object() ? answer.find("role") : answer.end();
    taken =
        taken && answer.is_object() && role != answer.end() && (*role == "tool" || *role == "user");
  }
  if (!taken)
    throw Error(ErrorCode::kInvalidArgument,
                "what answers a turn is no JSON array of messages of the roles tool and user");

  // Behind its own token, so that the text is split as it is in the whole conversation.
  const Behind behind = impl_->behind(answers, variables_json);
  std::vector<int32_t> ids = impl_->tokenizer.encode(behind.text, /*add_special_tokens=*/false);
  const int32_t end = impl_->tokenizer.token_to_id(behind.end);
  if (end < 0 || ids.empty() || ids.front() != end)
    refuse("ends turns with \"" + behind.end + "\", which is no token of the tokenizer");
  ids.erase(ids.begin());
  return ids;
}

}  // namespace retort::models
