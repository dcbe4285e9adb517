// Asks services outside the run by HTTP/1.1, plain or under TLS, many requests at a time.
//
//   http::Client client({.api_key = key});
//   http::Request request{.url = base.below("/v1/completions"), .idempotent = true};
//   request.body.push_back(http::piece_of(json));
//   Future<http::Response> answer = client.send(std::move(request), Deadline::after(60s));
//   ... other work ...
//   use(answer.get().body);
//
// Way of a request, and what each step waits for:
//
//   send() -> a place at its server -> a connection -> request -> answer -> Future
//               max_inflight,          kept or new                  |
//               in order of send()                                  |
//                  ^                                                |
//                  '--- pause after 429 or 503 (Patience), or <-----'
//                      when the attempt broke (Request::resends)
//
// Connections are kept for later requests, the latest used first, for less time than servers keep
// them. Redirections are refused, and so are encodings nobody asked for.
//
// Errors, all by the future, with the address (without its query) and, after an answer, its status
// as context; neither they nor anything else shows the key:
//   kInvalidArgument  a redirection, which the message names: the address is wrong
//   kUnauthenticated  401, 403; a certificate that cannot be trusted, with the reason
//   kMismatch         other statuses 4xx; a content type or encoding that nobody asked for
//   kUnavailable      no host, no connection, or one that broke; 5xx; 429 and 503 beyond Patience
//   kTimeout          a limit of time passed; the message says which and what was being done
//   kCorrupt          no HTTP, an answer that ends too early or has too many bytes
//   kResourceExhausted  a body above Limits::body_bytes; no descriptor left
//   kCancelled, kClosed
// Whether the request was executed is unknown after kUnavailable without a status, kTimeout and
// kCorrupt: the caller knows whether it may be sent again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/future.h"
#include "http/message.h"

namespace boost::asio {
class io_context;
}

namespace retort::http {

namespace detail {
class Core;
}

struct ClientOptions {
  // requests at one server at a time; others wait in the order of send()
  int max_inflight = 64;
  // to find the host, connect and agree on keys
  Duration connect_timeout = std::chrono::seconds(15);
  // How long an unused connection is kept. uvicorn closes after 5 s, without a word.
  Duration keep_idle = std::chrono::seconds(4);
  // PEM file of the authorities that are trusted; empty: the system's
  std::string ca_file;
  // sent with every request, to every server: a client for each key. Empty: none
  std::string api_key;
  // "Authorization" sends it as "Bearer KEY", others as it is
  std::string api_key_header = "Authorization";
  // of the jitter of pauses
  uint64_t seed = 0;

  // kInvalidArgument naming the option
  void validate() const;
};

// What a client did so far.
struct ClientCounters {
  uint64_t requests = 0;     // calls of send()
  uint64_t attempts = 0;     // requests that were written, or tried to
  uint64_t retries = 0;      // of those, second and later ones of a request
  uint64_t pauses = 0;       // waits after 429 or 503, and before what broke is sent again
  uint64_t connections = 0;  // opened
  uint64_t bytes_out = 0;    // of requests and answers with their headers, without TLS
  uint64_t bytes_in = 0;
};

// Threads: any. Futures complete, and `on_body` runs, on the client's own thread or the one that
//   runs `io`. The destructor, on any other thread, ends open requests with kClosed.
//   A host that is being looked up is waited for, as long as the system's resolver takes.
// Memory: an answer is held once, as far as it has come.
class Client {
 public:
  // Runs on a thread of its own. kInvalidArgument, also for a ca_file that cannot be read.
  explicit Client(ClientOptions options = {});
  // Runs on `io`, which one thread runs and which outlives the client and its requests.
  Client(boost::asio::io_context& io, ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // The answer, by `deadline` at the latest, waits included. Returns at once. cancel() on the
  // future gives up the place in line, or closes the connection.
  // Throws kInvalidArgument for headers that cannot be sent.
  Future<Response> send(Request request, Deadline deadline);

  ClientCounters counters() const;

 private:
  struct OwnThread;
  std::unique_ptr<OwnThread> own_;
  std::shared_ptr<detail::Core> core_;
};

}  // namespace retort::http
