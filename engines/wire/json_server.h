// A server that is asked in JSON: its address, and the client that asks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "engines/contract/options.h"
#include "http/client.h"

namespace retort::engines {

// How long a request waits for a server that is busy.
enum class Wait { kNot, kUntilDeadline };

// Threads: any. Futures complete on the client's thread. The destructor ends open requests with
//   kClosed, and runs what waits for them: let it be the last member of what they use.
class JsonServer {
 public:
  // kInvalidArgument for an address that is none.
  JsonServer(const ExternalOptions& options, const std::string& url, const std::string& key);

  const http::Url& url() const { return url_; }

  // Makes a request to `path` for an answer in JSON, sent again if it breaks; post() gives it a
  // body.
  http::Request to(http::Method method, const std::string& path) const;
  http::Request post(const std::string& path, std::string body) const;
  Future<http::Response> send(http::Request request, Deadline deadline, Wait wait = Wait::kNot);

  // post(), of an answer of at most `body_bytes` that is read as it arrives. `body_advice`: what to
  // think of a longer one.
  http::Request post_for_pieces(const std::string& path, std::string body, uint64_t body_bytes,
                                const std::string& body_advice,
                                std::function<void(std::string_view)> on_body) const;

  // send(), and then what `read(const http::Response&)` returns or throws. Whoever waits for it
  // lives no longer than the server.
  template <class F>
  auto ask(http::Request request, Deadline deadline, Wait wait, F read) {
    return send(std::move(request), deadline, wait)
        .then([this, read = std::move(read)](const http::Response& answer) {
          return reading([&] { return read(answer); });
        });
  }

  // Asks an administrative door. `check` reads the text of its answer; `explain` says what an error
  // means, also one of `check`.
  Future<Empty> administer(http::Request request, Deadline deadline,
                           Empty (*check)(const std::string& answer),
                           Error (*explain)(const Error& error));

  // An error of what `read` reads gets the address that it came from.
  template <class F>
  auto reading(F&& read) const {
    try {
      return read();
    } catch (const Error& error) {
      throw error.with("url", url_.shown());
    }
  }

 private:
  const Duration timeout_;
  const http::Url url_;
  http::Client client_;
};

}  // namespace retort::engines
