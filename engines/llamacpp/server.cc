#include "engines/llamacpp/server.h"

#include <algorithm>

#include "base/error.h"

namespace retort::engines::llamacpp {
namespace {

constexpr int kResends = 2;
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
    : base_(std::move(base)),
      key_(std::move(key)),
      timeout_(options.timeout),
      client_(std::make_unique<http::Client>(
          loop.io(), http::ClientOptions{.max_inflight = inflight_of(options),
                                         .ca_file = options.ca_file,
                                         .api_key = key_})) {}

void Server::close() { client_.reset(); }

Future<Json> Server::send(Ask what, Deadline deadline) {
  if (!client_) {
    Promise<Json> closed;
    closed.set_error(std::make_exception_ptr(Error(ErrorCode::kClosed, "the engine was closed")));
    return closed.future();
  }
  http::Request request{.method = what.method, .url = base_.below(what.path)};
  request.body = what.body;
  request.idempotent = what.repeatable;
  request.resends = what.repeatable ? kResends : 0;
  request.any_status = true;
  // The server says nothing until the last token is there: `idle` begins with the answer.
  request.limits.attempt = timeout_;
  request.limits.idle = timeout_;
  request.limits.body_bytes = what.answer_bytes;
  request.limits.body_advice = "this is more than was asked for; is this llama.cpp's server?";
  if (what.patient) request.patience.total = deadline.remaining();
  return client_->send(std::move(request), deadline)
      .then([this, what = std::move(what)](const http::Response& response) {
        return with_address([&] { return read(what, response); });
      });
}

Json Server::read(const Ask& what, const http::Response& response) const {
  if (response.status / 100 != 2) throw error_of(what, response);
  return parse_json(response.body);
}

Error Server::error_of(const Ask& what, const http::Response& response) const {
  const int status = response.status;
  return Error(code_for(status), what.path.substr(0, what.path.find('?')) + ": status " +
                                     std::to_string(status) + ": " +
                                     without(message_of(response.body), key_) + advice_for(status))
      .with("status", status);
}

}  // namespace retort::engines::llamacpp
