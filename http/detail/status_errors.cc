#include "http/detail/status_errors.h"

#include <string>

#include "http/detail/shown.h"
#include "http/url.h"

namespace retort::http::detail {
namespace {

ErrorCode code_for(int status) {
  if (status == 401 || status == 403) return ErrorCode::kUnauthenticated;
  const bool later = status == 408 || status == 425 || status == 429 || status >= 500;
  return later ? ErrorCode::kUnavailable : ErrorCode::kMismatch;
}

std::string advice_for(int status) {
  switch (status) {
    case 401:
    case 403: return "check the key and what it may do";
    case 404: return "check the path, and whether the server has this door switched on";
    case 413: return "the request is too large for the server";
    case 429:
    case 503: return "the server is busy or still starting; wait longer or ask for less at a time";
    default: break;
  }
  return status >= 500 ? "see the server's log" : "the server does not take this request";
}

Error redirection(const Response& response, std::string_view secret) {
  const std::string* location = find_header(response.headers, "Location");
  return Error(ErrorCode::kInvalidArgument,
               "status " + std::to_string(response.status) + ": redirected to " +
                   (location != nullptr ? shown(without_secrets(*location), secret) : "nowhere") +
                   "; redirections are not followed; write the address that answers");
}

}  // namespace

bool puts_off(const Response& response, const Patience& patience) {
  const int status = response.status;
  if (status == 429 || status == 503) return true;
  return patience.server_errors && (status == 408 || (status / 100 == 5 && status != 501));
}

std::optional<Error> error_of_status(const Request& request, const Response& response,
                                     std::string_view secret) {
  const int kind = response.status / 100;
  if (kind == 2) return std::nullopt;
  if (kind == 3) return redirection(response, secret);
  if (request.any_status && (kind == 4 || kind == 5)) return std::nullopt;
  return Error(code_for(response.status), "status " + std::to_string(response.status) +
                                              ", expected 2xx: " + shown(response.body, secret) +
                                              "; " + advice_for(response.status));
}

}  // namespace retort::http::detail
