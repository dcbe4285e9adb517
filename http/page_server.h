// Serves one text over HTTP to programs that look now and then, as Prometheus does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace retort::http {

// GET of `path` is answered with what `page` returns; everything else with 404 or 405. Nobody has
// to prove who he is.
//
// Threads: one of its own, on which `page` is called; the destructor waits for it.
// Limits: kMaxConnections at a time, others wait; kPatienceSeconds for a request; its head 8 KiB,
// no body.
class PageServer {
 public:
  static constexpr int kMaxConnections = 32;
  static constexpr int kPatienceSeconds = 10;

  struct Options {
    std::string address = "127.0.0.1";  // or a name of this host
    uint16_t port = 0;                  // 0: any that is free
    std::string path = "/metrics";
    std::string content_type = "text/plain; version=0.0.4; charset=utf-8";
    std::function<std::string()> page;  // must not throw
  };
  // kUnavailable naming the address when nobody can listen there.
  explicit PageServer(Options options);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::http
