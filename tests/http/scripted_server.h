// An HTTP server on an ephemeral port of this host that does with each connection what a test says,
// also what no server should.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tests/http/certificates.h"

namespace retort::test {

struct Received {
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// A connection as its server sees it. Used by its thread; calls block until the server is gone.
class Peer {
 public:
  virtual ~Peer() = default;
  // In the order in which they were accepted, from 0.
  virtual int index() const = 0;
  // nullopt if the client closed, or sent what is no request
  virtual std::optional<Received> read() = 0;
  // False if the client is gone.
  virtual bool write(std::string_view bytes) = 0;
  // Closes; under TLS without the goodbye that belongs to it.
  virtual void close() = 0;
  // Until the client has closed.
  virtual void wait_closed() = 0;
};

class ScriptedServer {
 public:
  using Script = std::function<void(Peer&)>;
  // Runs `script` in a thread for each connection, and closes after it.
  explicit ScriptedServer(Script script, std::optional<Certificate> certificate = {},
                          const std::string& address = "127.0.0.1");
  ~ScriptedServer();

  // "http://127.0.0.1:4711/path"
  std::string url(const std::string& path = "/") const { return url_of(host_, path); }
  std::string url_of(const std::string& host, const std::string& path = "/") const;
  int num_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string host_;
};

// A script: answers every request with what `answer` makes of it, as it is.
ScriptedServer::Script answer_all(std::function<std::string(const Received&)> answer);

// "HTTP/1.1 200 Because", a length, more lines ("Name: value\r\n") and the body.
std::string reply(int status, std::string_view body, std::string_view more_lines = "");

}  // namespace retort::test
