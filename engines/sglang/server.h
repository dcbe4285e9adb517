// An SGLang server as its requests need it: its address, and what is known of it.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/future.h"
#include "engines/contract/options.h"
#include "engines/sglang/served_model.h"
#include "engines/wire/json_server.h"

namespace retort::engines::sglang {

// The facts of a server that was asked.
struct Served {
  ModelInfo model;
  ServerInfo server;
  int64_t vocab_rows = 0;  // ids that its model knows
};

// Threads: any. Futures complete on the client's thread. The destructor ends open requests with
//   kClosed, and runs what waits for them.
class Server {
 public:
  // kInvalidArgument for an address that is none.
  Server(const ExternalOptions& options, const std::string& url, const std::string& key);

  // Address and requests.
  JsonServer& http() { return http_; }
  const JsonServer& http() const { return http_; }

  // Asks for the model and the server each time; for the vocabulary until it is known, as that is
  // an error in the server's log. kMismatch if the server does not say it.
  Future<Served> ask(Deadline deadline, Wait wait);
  // The server as it was when it was asked last; asks if it never was.
  Future<Served> served(Deadline deadline);
  std::optional<Served> known() const;
  Future<ModelInfo> model(Deadline deadline, Wait wait);

 private:
  Future<ServerInfo> info(Deadline deadline, Wait wait);
  Future<int64_t> vocabulary(Deadline deadline, Wait wait);

  const std::string served_model_;    // of the options
  const std::string weights_folder_;  // likewise
  mutable std::mutex mutex_;          // of served_, never held over a call
  std::optional<Served> served_;
  // The last member: its end runs what still waits for it, which uses the others.
  JsonServer http_;
};

}  // namespace retort::engines::sglang
