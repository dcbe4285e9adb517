// Between an adapter and a real llama-server: its real answers, rewritten, held back or lost.
//
//   adapter -> RewritingProxy -> RealServer, or another one (Proxying::upstream)
//                 asked()  ->  the question as the server gets it
//              <- answered()   the answer as the adapter gets it
//              <- instead()    no answer at all, or bytes that are none
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engines/contract/engine.h"
#include "http/client.h"
#include "tests/http/scripted_server.h"

namespace retort::engines::test {

// One POST /completion on its way.
struct Passing {
  int64_t number = 0;    // of the completions that this proxy saw, from 0
  nlohmann::json asked;  // by the adapter
  std::string reply;     // the server's, as the adapter would get it, with its head
};

// What a proxy does. Only completions are touched, but for `upstream` and `everything`. All of it
// runs on the threads of connections, several at a time.
struct Proxying {
  // The server that is asked; empty: the proxy's own. `number`: of completions so far.
  std::function<std::string(int64_t number)> upstream;
  std::function<void(nlohmann::json& asked)> asked;
  std::function<void(const nlohmann::json& asked, nlohmann::json& answer)> answered;
  // True if it wrote what stands for the answer, or nothing at all: the connection is closed then.
  std::function<bool(retort::test::Peer&, const Passing&)> instead;
  // The same for requests to all doors, before the server is asked.
  std::function<bool(retort::test::Peer&, const retort::test::Received&)> everything;
};

class RewritingProxy {
 public:
  explicit RewritingProxy(std::string upstream, Proxying how = {});

  std::string url() const { return server_->url(""); }
  std::unique_ptr<Engine> engine(Duration timeout = std::chrono::seconds(60)) const;
  int64_t completions() const { return completions_; }

 private:
  void serve(retort::test::Peer& peer);
  // False: the connection is to be closed.
  bool pass(retort::test::Peer& peer, const retort::test::Received& request);
  // The server's answer; throws what the client does.
  http::Response ask(const std::string& server, const retort::test::Received& request,
                     std::string body);

  const std::string upstream_;
  const Proxying how_;
  http::Client client_;
  std::atomic<int64_t> completions_{0};
  std::unique_ptr<retort::test::ScriptedServer> server_;  // last: its threads use the others
};

}  // namespace retort::engines::test
