#include "engines/openai/openai_engine.h"

#include <mutex>
#include <optional>
#include <utility>

#include "base/future_combinators.h"
#include "engines/answer_status.h"
#include "engines/json_server.h"
#include "engines/model_list.h"
#include "engines/openai/chat_question.h"

namespace retort::engines::openai {
namespace {

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

// Too long, or with what the server does not want to read: the next question may do.
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
