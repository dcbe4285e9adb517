// A llama-server that says what a test wants.
#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engines/contract/engine.h"
#include "engines/contract/options.h"
#include "tests/http/scripted_server.h"

namespace retort::engines::test {

using Json = nlohmann::json;

// For `tokens` tokens after a prompt of two.
DrawRequest draw_request(int64_t tokens);

// Answers like a server of one model "tiny" of 100 tokens with 2 slots of 64 tokens; doors can be
// given other answers. Bodies of requests are kept.
class FakeServer {
 public:
  // The whole reply, from the body of a request (null for none). Empty: the connection breaks.
  using Door = std::function<std::string(const Json&)>;

  FakeServer();

  // Paths are those of targets without their query: "/completion".
  void set(const std::string& path, Door door);
  std::vector<Json> bodies(const std::string& path) const;
  size_t count(const std::string& path) const { return bodies(path).size(); }

  ExternalOptions options() const;
  std::unique_ptr<Engine> engine(const std::string& key = "") const;

 private:
  std::string answer(const retort::test::Received& request);

  mutable std::mutex mutex_;
  std::map<std::string, Door> doors_;
  std::map<std::string, std::vector<Json>> bodies_;
  std::unique_ptr<retort::test::ScriptedServer> server_;
};

std::string json_reply(const Json& body, int status = 200);
std::string error_reply(int status, const std::string& message);

// A good answer of /completion to `request`: `tokens`, each with log-probability -1 and the top
// entries that the request asks for, at -0.5, -1.5, ...
Json completion_of(const Json& request, const std::vector<int>& tokens,
                   const std::string& stop_type = "limit");
// The answer where the server was made to draw a token, with log-probability -0.25.
Json forced_of(const Json& request);

}  // namespace retort::engines::test
