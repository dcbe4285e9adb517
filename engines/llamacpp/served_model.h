// Reads a llama-server's description of the model that it serves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/future.h"
#include "engines/contract/engine.h"
#include "engines/llamacpp/server.h"

namespace retort::engines::llamacpp {

// One of the list of models.
struct Listed {
  std::string name;
  // The router's word: "loaded", "loading", "unloaded", ...; empty: the server is no router.
  std::string status;
  bool failed = false;  // its process ended by itself, with
  int64_t exit_code = 0;
  std::string file;        // of weights, as the router starts it; "" if it does not say
  int64_t vocab_rows = 0;  // 0: it is not loaded

  bool routed() const { return !status.empty(); }
};

struct ServedModel {
  EngineState state;  // context_tokens of one slot: the server's divided by its slots
  int64_t num_slots = 1;
  bool routed = false;  // requests name the model
};

// The entry of the list that `served_model` names, by name or alias; empty: the only one.
// kMismatch naming those that are there.
Listed find_listed(const Json& list, const std::string& served_model);

// Asks /v1/models.
Future<Listed> list_model(Server& server, const std::string& served_model, Deadline deadline);

// Asks /health, /v1/models and /props. kUnavailable while the model loads; kMismatch where neither
// of the first two is there. A router that loads models when they are asked for (its default) loads
// this one, and the answer waits for it.
Future<ServedModel> read_served_model(Server& server, const std::string& served_model,
                                      Deadline deadline);

}  // namespace retort::engines::llamacpp
