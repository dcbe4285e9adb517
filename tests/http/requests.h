// Requests and waits that the tests of the client share.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

#include "http/client.h"
#include "tests/http/scripted_server.h"
#include "tests/support/thrown.h"

namespace retort::test {

// Bounds a hang; no test gets that far.
inline Deadline soon() { return Deadline::after(std::chrono::seconds(120)); }

inline http::Request post_to(const std::string& url, std::string body = "{}") {
  http::Request request{.url = http::parse_url(url)};
  request.body.push_back(http::piece_of(std::move(body)));
  return request;
}

inline http::Response ask(http::Client& client, http::Request request) {
  return client.send(std::move(request), soon()).get();
}
// The error of a request that must fail.
inline Error failure(http::Client& client, http::Request request) {
  return error_of([&] { ask(client, std::move(request)); });
}
inline std::string context_of(const Error& error, const std::string& key) {
  for (const auto& [name, value] : error.context())
    if (name == key) return value;
  return "";
}

// A number that threads raise and wait for.
class Count {
 public:
  void raise() {
    const std::lock_guard lock(mutex_);
    ++value_;
    changed_.notify_all();
  }
  int value() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  // Until it is at least `value`; false after two minutes.
  bool reaches(int value) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(2), [&] { return value_ >= value; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int value_ = 0;
};

}  // namespace retort::test
