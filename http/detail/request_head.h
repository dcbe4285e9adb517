// The first lines of a request.
#pragma once

#include <string>

#include "http/message.h"

namespace retort::http::detail {

// From "POST /score HTTP/1.1" to the blank line. `key`: a header with the key; its name is empty if
// there is none.
// Errors: kInvalidArgument for headers that are the client's own, or that have characters which
//   would end them; the error does not show their values.
std::string request_head(const Request& request, const Header& key);

size_t body_bytes(const Request& request);

}  // namespace retort::http::detail
