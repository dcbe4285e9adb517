#include "engines/wire/json_server.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/future_combinators.h"

namespace retort::engines {
namespace {

http::ClientOptions client_options(const ExternalOptions& options, const std::string& key) {
  const int64_t most = std::numeric_limits<int>::max();
  return {.max_inflight = static_cast<int>(std::min(options.max_inflight, most)),
          .ca_file = options.ca_file,
          .api_key = key};
}

}  // namespace

JsonServer::JsonServer(const ExternalOptions& options, const std::string& url,
                       const std::string& key)
    : timeout_(options.timeout),
      url_(http::parse_url(url)),
      client_(client_options(options, key)) {}

http::Request JsonServer::to(http::Method method, const std::string& path) const {
  http::Request request{.method = method, .url = url_.below(path), .idempotent = true};
  request.resends = 2;
  request.expected_type = "application/json";
  request.limits.attempt = timeout_;
  return request;
}

http::Request JsonServer::post(const std::string& path, std::string body) const {
  http::Request request = to(http::Method::kPost, path);
  request.body.push_back(http::piece_of(std::move(body)));
  return request;
}

http::Request JsonServer::post_for_pieces(const std::string& path, std::string body,
                                          uint64_t body_bytes, const std::string& body_advice,
                                          std::function<void(std::string_view)> on_body) const {
  http::Request request = post(path, std::move(body));
  request.limits.body_bytes = body_bytes;
  request.limits.body_advice = body_advice;
  request.on_body = std::move(on_body);
  return request;
}

Future<http::Response> JsonServer::send(http::Request request, Deadline deadline, Wait wait) {
  if (wait == Wait::kUntilDeadline) request.patience.total = deadline.remaining();
  return client_.send(std::move(request), deadline);
}

Future<Empty> JsonServer::administer(http::Request request, Deadline deadline,
                                     Empty (*check)(const std::string& answer),
                                     Error (*explain)(const Error& error)) {
  const auto read = [check](const http::Response& answer) { return check(answer.body); };
  return map_error(ask(std::move(request), deadline, Wait::kNot, read), explain);
}

}  // namespace retort::engines
