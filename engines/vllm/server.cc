#include "engines/vllm/server.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/future_combinators.h"
#include "engines/vllm/completion_question.h"
#include "engines/wire/answer_status.h"
#include "engines/wire/json_object.h"

namespace retort::engines::vllm {
namespace {

// Reads the answer of /version; kCorrupt for another one.
std::string read_version(const std::string& json) {
  const nlohmann::json answer = json_object(json, "/version");
  const auto version = answer.find("version");
  if (version == answer.end() || !version->is_string())
    throw Error(ErrorCode::kCorrupt, "/version: the answer has no version");
  return version->get<std::string>();
}

}  // namespace

Server::Server(const ExternalOptions& options, const std::string& url, const std::string& key)
    : served_model_(options.served_model), http_(options, url, key) {}

std::optional<Served> Server::known() const {
  const std::lock_guard lock(mutex_);
  return served_;
}

Future<std::string> Server::version(Deadline deadline) {
  Future<std::string> version =
      http_.send(http_.to(http::Method::kGet, "/version"), deadline)
          .then([this](http::Response answer) {
            return http_.reading([&] { return read_version(answer.body); });
          });
  return then_outcome(std::move(version), [](Outcome<std::string> outcome) {
    if (!outcome.error) return std::move(*outcome.value);
    try {
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      if (status_of(error) != 404) throw;
      return std::string();
    }
  });
}

Future<Served> Server::served(Deadline deadline) {
  if (auto before = known()) return ready_future(std::move(*before));
  return ask(deadline, Wait::kUntilDeadline);
}

Future<Served> Server::ask(Deadline deadline, Wait wait) {
  return http_.send(http_.to(http::Method::kGet, "/v1/models"), deadline, wait)
      .then([this, deadline, wait](http::Response answer) {
        ListedModel model =
            http_.reading([&] { return find_listed_model(answer.body, served_model_); });
        return ask_limit(model, deadline, wait)
            .then([this, model](std::optional<LogProbLimit> limit) {
              const std::lock_guard lock(mutex_);
              served_ = Served{.model = model, .limit = limit};
              return *served_;
            });
      });
}

Future<std::optional<LogProbLimit>> Server::ask_limit(const ListedModel& model, Deadline deadline,
                                                      Wait wait) {
  const auto before = known();
  if (before && before->model.name == model.name && before->limit)
    return ready_future(before->limit);

  // The limit is read from a refusal. So the server is asked for more log-probabilities than any
  // vocabulary has, which it must refuse, and then for as many as the vocabulary has, which it
  // refuses unless it allows all of them.
  using Limit = std::optional<LogProbLimit>;
  const std::string too_many = limit_question(model.name, std::numeric_limits<int32_t>::max());
  const std::string all = limit_question(model.name, -1);
  return ask_limit(too_many, deadline, wait).then([this, all, deadline, wait](Limit first) {
    return ask_limit(all, deadline, wait).then([first](Limit second) -> Limit {
      if (second || !first) return second;
      return LogProbLimit{.asked = first->allowed, .allowed = first->allowed};
    });
  });
}

// Gives nullopt if the request was taken, or refused in words that say nothing of a limit.
Future<std::optional<LogProbLimit>> Server::ask_limit(const std::string& body, Deadline deadline,
                                                      Wait wait) {
  using Limit = std::optional<LogProbLimit>;
  return then_outcome(http_.send(http_.post("/v1/completions", body), deadline, wait),
                      [](Outcome<http::Response> outcome) -> Limit {
                        if (!outcome.error) return std::nullopt;
                        try {
                          std::rethrow_exception(outcome.error);
                        } catch (const Error& error) {
                          if (status_of(error) != 400) throw;
                          return log_prob_limit(error.message());
                        }
                      });
}

}  // namespace retort::engines::vllm
