#include "engines/llamacpp/server.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace retort::engines::llamacpp {
namespace {

constexpr int kMaxFailures = 3;
constexpr std::chrono::milliseconds kPauseAfterFailure{200};
constexpr size_t kShownErrorBytes = 500;

ErrorCode code_for(int status) {
  switch (status) {
    case 400: return ErrorCode::kInvalidArgument;
    case 401:
    case 403: return ErrorCode::kUnauthenticated;
    case 404:
    case 405:
    case 408:
    case 429: return ErrorCode::kUnavailable;
    case 413: return ErrorCode::kResourceExhausted;
    default: return status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kMismatch;
  }
}

std::string advice_for(int status) {
  switch (status) {
    case 401:
    case 403: return "; check the key (api_key_env, api_key_file)";
    case 404:
    case 405:
    case 501: return "; this server does not have this door";
    case 503: return "; it loads the model or is busy; wait longer (load_timeout)";
    default: return status >= 500 ? "; see the server's log" : "";
  }
}

// {"error": {"message": ...}}, or the body's first bytes.
std::string message_of(const std::string& body) {
  const Json value = Json::parse(body, nullptr, false);
  if (value.is_object() && value.contains("error")) {
    const Json& error = value["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return error["message"].get<std::string>().substr(0, kShownErrorBytes);
  }
  return body.substr(0, kShownErrorBytes);
}

int inflight_of(const ExternalOptions& options) {
  return static_cast<int>(std::min<int64_t>(options.max_inflight, INT32_MAX));
}

std::string without(std::string text, const std::string& secret) {
  if (secret.empty()) return text;
  for (size_t at = text.find(secret); at != std::string::npos; at = text.find(secret, at))
    text.replace(at, secret.size(), "(key)");
  return text;
}

}  // namespace

Server::Server(Loop& loop, const ExternalOptions& options, http::Url base, std::string key)
    : loop_(loop),
      base_(std::move(base)),
      key_(std::move(key)),
      timeout_(options.timeout),
      client_(std::make_unique<http::Client>(
          loop.io(), http::ClientOptions{.max_inflight = inflight_of(options),
                                         .ca_file = options.ca_file,
                                         .api_key = key_})) {}

void Server::close() { client_.reset(); }

Future<Json> Server::send(Ask what, Deadline deadline) {
  return send_again(std::move(what), deadline, 0);
}

// Only a request that broke on its way goes again: an answer, whatever it says, is one.
Future<Json> Server::send_again(Ask what, Deadline deadline, int failures) {
  Promise<Json> promise;
  Future<Json> result = promise.future();
  Future<http::Response> answer = once(what, deadline);
  promise.on_cancel(answer.canceller());

  answer.on_outcome([this, promise, what = std::move(what), deadline,
                     failures](Outcome<http::Response> outcome) mutable {
    try {
      if (outcome.value) {
        promise.set_value(with_address([&] { return read(what, *outcome.value); }));
        return;
      }
      std::rethrow_exception(outcome.error);
    } catch (const Error& error) {
      const bool broke = !outcome.value && error.code() == ErrorCode::kUnavailable;
      if (!broke || !what.repeatable || failures + 1 >= kMaxFailures || deadline.expired()) {
        promise.set_error(std::current_exception());
        return;
      }
    } catch (...) {
      promise.set_error(std::current_exception());
      return;
    }
    const Deadline later(std::min(Deadline::after(kPauseAfterFailure).time(), deadline.time()));
    Future<Json> second =
        loop_.pause_until(later).then([this, what = std::move(what), deadline, failures](Empty) {
          return send_again(what, deadline, failures + 1);
        });
    promise.on_cancel(second.canceller());
    second.on_outcome([promise](Outcome<Json> last) mutable { promise.complete(std::move(last)); });
  });
  return result;
}

Future<http::Response> Server::once(const Ask& what, Deadline deadline) {
  if (!client_) {
    Promise<http::Response> closed;
    closed.set_error(std::make_exception_ptr(Error(ErrorCode::kClosed, "the engine was closed")));
    return closed.future();
  }
  http::Request request{.method = what.method, .url = base_.below(what.path)};
  request.body = what.body;
  request.idempotent = what.repeatable;
  request.any_status = true;
  // The server says nothing until the last token is there: `idle` begins with the answer.
  request.limits.attempt = timeout_;
  request.limits.idle = timeout_;
  request.limits.body_bytes = what.answer_bytes;
  request.limits.body_advice = "this is more than was asked for; is this llama.cpp's server?";
  if (what.patient) request.patience.total = deadline.remaining();
  return client_->send(std::move(request), deadline);
}

Json Server::read(const Ask& what, const http::Response& response) const {
  if (response.status / 100 != 2) throw error_of(what, response);
  return parse_json(response.body);
}

Error Server::error_of(const Ask& what, const http::Response& response) const {
  const int status = response.status;
  return Error(code_for(status), what.path.substr(0, what.path.find('?')) + ": status " +
                                     std::to_string(status) + ": " +
                                     without(message_of(response.body), key_) + advice_for(status));
}

}  // namespace retort::engines::llamacpp
