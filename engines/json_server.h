// A server that is asked in JSON: its address, and the client that asks.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "engines/options.h"
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

  // To the door `path`, for an answer in JSON, sent again if it breaks; and one with a body.
  http::Request to(http::Method method, const std::string& path) const;
  http::Request post(const std::string& path, std::string body) const;
  Future<http::Response> send(http::Request request, Deadline deadline, Wait wait = Wait::kNot);

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
