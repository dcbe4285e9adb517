// A vLLM server as its requests need it: its address, and what is known of it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "engines/contract/options.h"
#include "engines/vllm/refusal.h"
#include "engines/wire/json_server.h"
#include "engines/wire/model_list.h"

namespace retort::engines::vllm {

// The facts of a server that was asked.
struct Served {
  ListedModel model;
  // asked: the ids that the model knows; nullopt: the server does not say it in words we know
  std::optional<LogProbLimit> limit;
};

// Threads: any. Futures complete on the client's thread. The destructor ends open requests with
//   kClosed, and runs what waits for them.
class Server {
 public:
  // kInvalidArgument for an address that is none, and for a key that would cross a network in
  // plain sight (plain_admin.h).
  Server(const ExternalOptions& options, const std::string& url, const std::string& key);

  // Address and requests.
  JsonServer& http() { return http_; }
  const JsonServer& http() const { return http_; }

  // "" where nothing says it: a gateway before the server may not have this door.
  Future<std::string> version(Deadline deadline);
  // Asks for the model each time; for its limits until they are known, as the server's log gets a
  // page for each request that it refuses.
  Future<Served> ask(Deadline deadline, Wait wait);
  // The server as it was when it was asked last; asks if it never was.
  Future<Served> served(Deadline deadline);
  std::optional<Served> known() const;

 private:
  Future<std::optional<LogProbLimit>> ask_limit(const ListedModel& model, Deadline deadline,
                                                Wait wait);
  Future<std::optional<LogProbLimit>> ask_limit(const std::string& body, Deadline deadline,
                                                Wait wait);

  const std::string served_model_;  // of the options
  mutable std::mutex mutex_;        // of served_, never held over a call
  std::optional<Served> served_;
  // The last member: its end runs what still waits for it, which uses the others.
  JsonServer http_;
};

}  // namespace retort::engines::vllm
