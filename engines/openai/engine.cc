#include "engines/openai/engine.h"

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/future_combinators.h"
#include "engines/wire/answer_status.h"
#include "engines/wire/json_object.h"
#include "engines/wire/json_server.h"
#include "engines/wire/model_list.h"

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

// A model that thinks may have said nothing yet when it is cut, so content that is missing is an
// empty text and no error.
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

// The body of the request: one message of a user, temperature 0. Bytes of the text that are not
// UTF-8 are replaced.
std::string chat_question(const std::string& served_model, const WriteRequest& request) {
  Json body;
  body["model"] = served_model;
  body["messages"] = Json::array({{{"role", "user"}, {"content", request.text}}});
  body["temperature"] = 0;
  body["max_tokens"] = request.max_new_tokens;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// An answer may bring this much at the most: its tokens, each of them escaped, and what servers say
// beside them.
uint64_t answer_bytes(const WriteRequest& request) {
  return kAnswerBytes + kTokenBytes * static_cast<uint64_t>(request.max_new_tokens);
}

// kCorrupt for an answer that is none, in the server's words where it has some: gateways say
// "error" with a status of 200.
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

bool is_no_door(int status) { return status == 404 || status == 405 || status == 501; }

std::string without_version(std::string url) {
  while (url.ends_with('/'))
    url.pop_back();
  return url.ends_with("/v1") ? url.substr(0, url.size() - 3) : url;
}

Error explained(const Error& error) {
  if (!is_no_door(status_of(error))) return error;
  return with_advice(error, ErrorCode::kInvalidArgument,
                     "the server has no chat completions there, or not this model; url is the "
                     "address without /v1/chat/completions");
}

// A question is refused when it is too long, or has what the server does not want to read. The next
// one may do, so only this one fails.
bool is_refusal(const Error& error) {
  const int status = status_of(error);
  return status == 400 || status == 413 || status == 422;
}

class OpenaiEngine final : public Engine {
 public:
  OpenaiEngine(const ExternalOptions& options, const std::string& url, const std::string& key)
      : served_model_(options.served_model), http_(options, without_version(url), key) {}

  Abilities abilities() const override { return {.writes = true}; }

  Future<EngineState> state(Deadline deadline) override {
    Future<ListedModel> listed =
        http_.send(http_.to(http::Method::kGet, "/v1/models"), deadline)
            .then([this](const http::Response& answer) {
              return http_.reading([&] { return find_listed_model(answer.body, served_model_); });
            });
    return then_outcome(std::move(listed), [this](Outcome<ListedModel> outcome) {
      const ListedModel model = listed_or_named(std::move(outcome));
      const std::lock_guard lock(mutex_);
      asked_model_ = model.name;
      return EngineState{.version = "",
                         .served_model = model.name,
                         .vocab_rows = 0,
                         .context_tokens = model.context_tokens};
    });
  }

  Future<Written> write(WriteRequest request, Deadline deadline) override {
    return model(deadline).then([this, request, deadline](const std::string& model) {
      http::Request question = http_.post("/v1/chat/completions", chat_question(model, request));
      question.limits.body_bytes = answer_bytes(request);
      question.limits.body_advice = "this is more than max_new_tokens can be";
      question.patience.server_errors = true;
      return then_outcome(http_.send(std::move(question), deadline, Wait::kUntilDeadline),
                          [this](Outcome<http::Response> outcome) { return written(outcome); });
    });
  }

 private:
  // The name that questions use.
  Future<std::string> model(Deadline deadline) {
    {
      const std::lock_guard lock(mutex_);
      if (!asked_model_.empty()) return ready_future(asked_model_);
    }
    return state(deadline).then([](const EngineState& state) { return state.served_model; });
  }

  ListedModel listed_or_named(Outcome<ListedModel> outcome) const {
    if (!outcome.error) return std::move(*outcome.value);
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      if (!is_no_door(status_of(error))) throw;
      if (!served_model_.empty()) return {.name = served_model_};
      throw with_advice(error, ErrorCode::kInvalidArgument,
                        "served_model: the server lists no models, so name the one to ask");
    }
  }

  Written written(const Outcome<http::Response>& outcome) {
    if (!outcome.error)
      return http_.reading([&] { return checked(read_chat_answer(outcome.value->body)); });
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      if (is_refusal(error)) return {.cut = true, .refused = error.message()};
      throw explained(error);
    }
  }

  Written checked(Written answer) {
    const std::lock_guard lock(mutex_);
    // Behind a gateway the same name may become another model. Its answers would be of another
    // judge, so the run ends instead.
    if (!answered_by_) answered_by_ = answer.model;
    if (*answered_by_ != answer.model)
      throw Error(ErrorCode::kInvalidArgument, "the server's answers came from the model '" +
                                                   *answered_by_ + "', and one comes from '" +
                                                   answer.model +
                                                   "': another model under the same address");
    return answer;
  }

  const std::string served_model_;  // of the options
  std::mutex mutex_;                // of what follows, never held over a call
  std::string asked_model_;
  std::optional<std::string> answered_by_;
  // The last member: its end runs what still waits for it, which uses the others.
  JsonServer http_;
};

}  // namespace

std::unique_ptr<Engine> make_openai(const ExternalOptions& options, const std::string& url,
                                    const std::string& key) {
  return std::make_unique<OpenaiEngine>(options, url, key);
}

}  // namespace retort::engines::openai
