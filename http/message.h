// A request to a service, what it may cost, and the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "http/url.h"

namespace retort::http {

enum class Method { kGet, kPost, kPut, kDelete };
std::string_view to_string(Method method);  // "GET"

struct Header {
  std::string name;
  std::string value;
};
using Headers = std::vector<Header>;
// The first header of this name, upper or lower case; null if there is none.
const std::string* find_header(const Headers& headers, std::string_view name);

// Bytes of a body, sent from where they lie.
struct Piece {
  std::string_view bytes;
  // Keeps them where they are; let go once nothing of the request is under way any more.
  std::shared_ptr<const void> owner;
};
Piece piece_of(std::string text);

// How long one attempt may take and how much it may bring. Waits of a request that was put off
// (Patience) do not count.
struct Limits {
  // from a place among the requests in flight to the last byte of the answer
  Duration attempt = std::chrono::minutes(10);
  // Between two pieces of the request, or of the answer once that has begun: a server that stops
  // halfway. How long it may think before its first byte is a matter of `attempt`.
  Duration idle = std::chrono::seconds(60);
  // for a place (ClientOptions::max_inflight), whenever one is needed
  Duration place = std::chrono::hours(24);
  // of an answer with a status 2xx; of others the first 64 KiB are read
  uint64_t body_bytes = uint64_t{8} << 20;
  // what a user can do about a body that is larger, for the error
  std::string body_advice = "raise Limits::body_bytes";
};

// A request that is answered with 429 or 503 is sent again after the time that the answer names
// (Retry-After), else after pauses that double, with jitter. The server did not begin with it, so
// this holds for all requests.
struct Patience {
  // all pauses of a request together; an answer that asks for more is an error at once. 0: none
  Duration total = Duration(0);
  // Also 408 and 5xx but 501: for a request that only asks, of a service whose gateway fails now
  // and then.
  bool server_errors = false;
  Duration first_pause = std::chrono::milliseconds(500);
  Duration longest_pause = std::chrono::seconds(30);
};

struct Request {
  Method method = Method::kPost;
  Url url;
  // Besides those that the client writes: Host, User-Agent, Accept, Accept-Encoding, Content-Type,
  // Content-Length and that of the key. Host, Connection, Content-Length and Transfer-Encoding are
  // refused here; others stand instead of the client's own.
  Headers headers;
  std::vector<Piece> body;
  std::string content_type = "application/json";  // of `body`, if there is one
  // The type that an answer 2xx must have if it names one, e.g. "application/json"; sent as Accept.
  // Empty: any.
  std::string expected_type;
  // Answers in another encoding are refused; nothing is decoded, Response::body is as it came.
  std::string accept_encoding = "identity";

  // A second execution does no harm: the request is sent once more where a connection that was
  // kept from an earlier request turns out to be closed, which leaves open what the server did.
  bool idempotent = false;
  // How often an idempotent request is sent again, after a short pause, when an attempt broke: no
  // connection came about, or it ended before the whole answer. Not once `on_body` took some of it.
  int resends = 0;
  // Other statuses than 2xx are answers instead of errors: 4xx and 5xx, with the first 64 KiB of
  // their bodies; 429 and 503 once `patience` is spent.
  bool any_status = false;
  Limits limits;
  Patience patience;

  // Takes the body of an answer 2xx as it comes, in pieces of any size; Response::body stays empty.
  // Runs on the client's thread and must not block. What it throws ends the request and is the
  // error of its future.
  std::function<void(std::string_view)> on_body;
};

struct Response {
  int status = 0;
  Headers headers;
  std::string body;  // without the encoding of the transfer
};

}  // namespace retort::http
