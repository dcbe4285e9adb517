// A small HTTP client: one request, one connection, one deadline. No redirections, no retries, no
// https.
#pragma once

#include <string>

#include "base/deadline.h"
#include "http/url.h"

namespace retort::http {

struct Response {
  int status = 0;    // whatever the service said, 200 or not
  std::string body;  // without the encoding of the transfer
};

// Posts `body`, which is JSON, and waits for the whole answer (at most 64 MiB) on a connection of
// its own.
//
// Errors: kTimeout unless everything, from the look-up of the host to the last byte, is done by the
//   deadline; kUnavailable if there is no connection, or it breaks; kCorrupt if the answer is no
//   HTTP or ends too early. The message says what was being done, e.g. "connecting: Connection
//   refused".
// Threads: any; the call blocks and needs no event loop of the caller.
Response post_json(const Url& url, std::string body, const Deadline& deadline);

}  // namespace retort::http
