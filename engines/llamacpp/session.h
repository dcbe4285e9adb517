// Holds what the requests to one llama-server share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/future.h"
#include "engines/contract/options.h"
#include "engines/llamacpp/completion.h"
#include "engines/llamacpp/loop.h"
#include "engines/llamacpp/served_model.h"
#include "engines/llamacpp/server.h"
#include "engines/llamacpp/slot_semaphore.h"

namespace retort::engines::llamacpp {

// Ids as they stand in a request, written once; copies share them.
class PromptText {
 public:
  explicit PromptText(std::span<const int32_t> ids);
  // "1,2,3" of the first `count` ids.
  http::Piece prefix(size_t count) const;

 private:
  struct Written {
    std::string text;
    std::vector<size_t> ends;  // of each id in the text
  };
  std::shared_ptr<const Written> written_;
};

struct CompletionAsk {
  PromptText ids;
  size_t prompt_tokens = 0;  // how many of them are the prompt
  Json parameters;
  CompletionBounds bounds;
  bool with_settings = false;  // Completion::settings
  bool repeatable = false;     // it only asks
};

// Threads: the loop's, but for the constructor.
class Session {
 public:
  Session(Loop& loop, const ExternalOptions& options, http::Url base, std::string key);

  // Asks the server for the model's facts and keeps them.
  Future<ServedModel> read_served(Deadline deadline);
  // Gives the facts that are kept; reads them if there are none.
  Future<ServedModel> served(Deadline deadline);
  // Drops the facts: what was read of one model holds for no other.
  void forget();

  // POST /completion. After served().
  Future<Completion> complete(const CompletionAsk& ask, Deadline deadline);
  // A token that is a text of its own, after which the server always speaks. After served().
  Future<int32_t> plain_token(Deadline deadline);

  Loop& loop() { return loop_; }
  Server& server() { return server_; }
  SlotSemaphore& slots() { return slots_; }
  const ExternalOptions& options() const { return options_; }

 private:
  Loop& loop_;
  ExternalOptions options_;
  Server server_;
  SlotSemaphore slots_;
  std::optional<ServedModel> served_;
  std::optional<int32_t> plain_token_;
};

}  // namespace retort::engines::llamacpp
