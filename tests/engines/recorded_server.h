// A server that answers as a real engine did: exchanges that were recorded from it.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/http/scripted_server.h"

namespace retort::test {

// One request and its answer, from a file of tests/engines/recorded.
struct Exchange {
  nlohmann::json request;  // {"method", "path", "body"}
  nlohmann::json answer;   // {"status", "content_type", "body"}: the body is text

  // "prompt_logprobs" of its only choice, and the like
  nlohmann::json choice() const;
  std::string reply() const;  // as HTTP
};
Exchange read_exchange(const std::filesystem::path& file);
std::map<std::string, Exchange> read_exchanges(const std::filesystem::path& folder);  // by name

// Answers a request that was recorded with what was answered then. A request may have fields of its
// own, by default a "request_id"; all else must be as recorded, or the answer is 418 and the
// request is kept. Where an answer has ${field}, stands what a request had there last.
class RecordedServer {
 public:
  // `own`: those fields, and what answers have of them before any request.
  explicit RecordedServer(std::map<std::string, Exchange> exchanges,
                          std::map<std::string, std::string> own = {{"request_id", ""}});

  std::string url() const { return server_.url("/"); }
  // The requests that came and that nobody recorded.
  std::vector<std::string> unknown() const;
  // The names of the exchanges that came, in their order.
  std::vector<std::string> asked() const;
  // Headers and body of the last request for an exchange.
  Received last(const std::string& name) const;
  // Gives this reply to requests of that name from now on.
  void answer(const std::string& name, const std::string& reply);

 private:
  std::string respond(const Received& received);
  std::string filled(std::string reply) const;

  mutable std::mutex mutex_;
  std::map<std::string, Exchange> exchanges_;
  std::map<std::string, std::string> own_;
  std::map<std::string, std::string> replies_;
  std::map<std::string, Received> last_;
  std::vector<std::string> unknown_, asked_;
  ScriptedServer server_;
};

}  // namespace retort::test
