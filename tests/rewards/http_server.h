// A small HTTP server on an ephemeral port of this host whose answer depends on the path.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

namespace retort::test {

class HttpServer {
 public:
  HttpServer();
  ~HttpServer();
  std::string url(const std::string& path) const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }
  // "METHOD TARGET HOST CONTENT_TYPE" of the latest request, after its answer
  std::string last_request() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  uint16_t port_ = 0;
};

}  // namespace retort::test
