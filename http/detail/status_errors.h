// Which answers are errors, and which.
#pragma once

#include <optional>
#include <string_view>

#include "base/error.h"
#include "http/message.h"

namespace retort::http::detail {

// 429 and 503: the server did not begin. With patience.server_errors also 408 and 5xx but 501,
// where it may have.
bool puts_off(const Response& response, const Patience& patience);

// The error that a complete answer is, without address; nullopt if it is none. A redirection always
// is one, other statuses unless Request::any_status. `secret`: as in shown().
std::optional<Error> error_of_status(const Request& request, const Response& response,
                                     std::string_view secret);

}  // namespace retort::http::detail
