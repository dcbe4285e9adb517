// Requests to one llama-server, and what their failures mean.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/future.h"
#include "engines/contract/options.h"
#include "engines/llamacpp/json.h"
#include "engines/llamacpp/loop.h"
#include "http/client.h"

namespace retort::engines::llamacpp {

struct Ask {
  http::Method method = http::Method::kPost;
  std::string path;  // "/completion", with a query if it has one
  std::vector<http::Piece> body;
  uint64_t answer_bytes = uint64_t{1} << 20;  // at most
  // It only asks: it is sent again when the connection breaks on its way, twice at the most.
  bool repeatable = true;
  // Waits for a server that is busy or loading, until the deadline.
  bool patient = true;
};

// Errors of ask(), with the address as context: as http::Client's, but
//   kInvalidArgument  the server refuses the request (400), with its text
//   kUnavailable      it does not have this door (404, 405, 501)
//   kCorrupt          the answer is no JSON, or `read` says so
// Threads: the loop's.
class Server {
 public:
  Server(Loop& loop, const ExternalOptions& options, http::Url base, std::string key);

  // What `read` makes of the answer; what it throws is the future's error.
  template <class T>
  Future<T> ask(Ask what, Deadline deadline, std::function<T(const Json&)> read) {
    return send(std::move(what), deadline).then([this, read = std::move(read)](Json answer) {
      return with_address([&] { return read(answer); });
    });
  }
  Future<Json> ask(Ask what, Deadline deadline) { return send(std::move(what), deadline); }

  // Runs `fn`; an Error of its own gets the address.
  template <class Fn>
  auto with_address(Fn fn) const {
    try {
      return fn();
    } catch (const Error& error) {
      throw error.with("url", base_.shown());
    }
  }
  const http::Url& base() const { return base_; }
  // Ends open requests with kClosed; later ones fail with it too.
  void close();

 private:
  Future<Json> send(Ask what, Deadline deadline);
  Json read(const Ask& what, const http::Response& response) const;
  Error error_of(const Ask& what, const http::Response& response) const;

  http::Url base_;
  std::string key_;
  Duration timeout_;
  std::unique_ptr<http::Client> client_;  // null once closed
};

}  // namespace retort::engines::llamacpp
