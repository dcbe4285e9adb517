#include "engines/sglang/server.h"

#include <utility>

#include "base/future_combinators.h"
#include "engines/sglang/generate_question.h"
#include "engines/sglang/refusal.h"
#include "engines/wire/answer_status.h"
#include "engines/wire/request_names.h"

namespace retort::engines::sglang {

Server::Server(const ExternalOptions& options, const std::string& url, const std::string& key)
    : served_model_(options.served_model),
      weights_folder_(options.weights.folder),
      http_(options, url, key) {}

std::optional<Served> Server::known() const {
  const std::lock_guard lock(mutex_);
  return served_;
}

Future<Served> Server::served(Deadline deadline) {
  if (auto before = known()) return ready_future(std::move(*before));
  return ask(deadline, Wait::kUntilDeadline);
}

Future<ModelInfo> Server::model(Deadline deadline, Wait wait) {
  return map_error(http_.send(http_.to(http::Method::kGet, "/model_info"), deadline, wait),
                   explained)
      .then([this](http::Response answer) {
        return http_.reading([&] {
          ModelInfo model = read_model_info(answer.body);
          check_served_model(model, served_model_, weights_folder_);
          return model;
        });
      });
}

Future<ServerInfo> Server::info(Deadline deadline, Wait wait) {
  return map_error(http_.send(http_.to(http::Method::kGet, "/server_info"), deadline, wait),
                   explained)
      .then([this](http::Response answer) {
        return http_.reading([&] { return read_server_info(answer.body); });
      });
}

Future<Served> Server::ask(Deadline deadline, Wait wait) {
  return model(deadline, wait).then([this, deadline, wait](ModelInfo model) {
    return info(deadline, wait).then([this, deadline, wait, model](ServerInfo server) {
      return vocabulary(deadline, wait).then([this, model, server](int64_t vocab_rows) {
        const std::lock_guard lock(mutex_);
        served_ = Served{.model = model, .server = server, .vocab_rows = vocab_rows};
        return *served_;
      });
    });
  });
}

Future<int64_t> Server::vocabulary(Deadline deadline, Wait wait) {
  // The size of the vocabulary is read from the refusal of a logit_bias for an id that is too high.
  // Other weights do not change it, so the server is asked once.
  if (const auto before = known()) return ready_future(before->vocab_rows);
  http::Request request = http_.post("/generate", vocabulary_question(RequestNames().next()));
  return then_outcome(http_.send(std::move(request), deadline, wait),
                      [this](Outcome<http::Response> outcome) -> int64_t {
                        std::string answer = "it took the request";
                        try {
                          if (outcome.error) std::rethrow_exception(outcome.error);
                        } catch (const Error& error) {
                          if (status_of(error) != 400) throw;
                          if (const auto rows = vocabulary_of(error.message())) return *rows;
                          answer = error.message();
                        }
                        throw Error(
                            ErrorCode::kMismatch,
                            "the server does not say how many ids its model knows, as SGLang "
                            "0.5.23 does of a logit_bias that is too high: " +
                                answer)
                            .with("url", http_.url().shown());
                      });
}

}  // namespace retort::engines::sglang
