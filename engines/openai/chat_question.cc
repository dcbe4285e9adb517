#include "engines/openai/chat_question.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engines/json_object.h"

namespace retort::engines::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kAnswerBytes = uint64_t{1} << 20;
constexpr uint64_t kTokenBytes = 256;

[[noreturn]] void corrupt(const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "/v1/chat/completions: " + what);
}

const nlohmann::json& only_choice(const nlohmann::json& answer) {
  const auto choices = answer.find("choices");
  if (choices == answer.end() || !choices->is_array() || choices->size() != 1 ||
      !choices->front().is_object())
    corrupt("the answer has no list of one choice, which was asked for");
  return choices->front();
}

// A model that thinks may have said nothing yet when it is cut.
std::string text_of(const nlohmann::json& choice) {
  const auto message = choice.find("message");
  if (message == choice.end() || !message->is_object()) corrupt("the choice has no message");
  const auto content = message->find("content");
  if (content == message->end() || content->is_null()) return "";
  if (!content->is_string()) corrupt("the message's content is no text");
  return content->get<std::string>();
}

int64_t tokens_of(const nlohmann::json& answer) {
  const auto usage = answer.find("usage");
  if (usage == answer.end() || !usage->is_object()) return 0;
  const auto tokens = usage->find("completion_tokens");
  return tokens != usage->end() && tokens->is_number_integer() ? tokens->get<int64_t>() : 0;
}

}  // namespace

std::string chat_question(const std::string& served_model, const WriteRequest& request) {
  Json body;
  body["model"] = served_model;
  body["messages"] = Json::array({{{"role", "user"}, {"content", request.text}}});
  body["temperature"] = 0;
  body["max_tokens"] = request.max_new_tokens;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

uint64_t answer_bytes(const WriteRequest& request) {
  return kAnswerBytes + kTokenBytes * static_cast<uint64_t>(request.max_new_tokens);
}

Written read_chat_answer(const std::string& json) {
  constexpr size_t kShown = 500;
  const nlohmann::json answer = json_object(json, "/v1/chat/completions");
  if (answer.contains("error") && !answer["error"].is_null())
    corrupt("the answer is an error: " + answer["error"].dump().substr(0, kShown));
  const nlohmann::json& choice = only_choice(answer);
  Written written{.text = text_of(choice)};
  written.tokens = tokens_of(answer);

  const auto reason = choice.find("finish_reason");
  if (reason == choice.end() || !reason->is_string()) corrupt("the choice has no finish_reason");
  written.cut = reason->get<std::string>() != "stop";

  const auto model = answer.find("model");
  if (model != answer.end() && model->is_string()) written.model = model->get<std::string>();
  return written;
}

}  // namespace retort::engines::openai
