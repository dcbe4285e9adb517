// An engine that answers in words, as a test says.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "base/future_combinators.h"
#include "engines/contract/engine.h"

namespace retort::engines {

class WordsEngine final : public Engine {
 public:
  using Rule = std::function<Written(const WriteRequest&)>;
  explicit WordsEngine(Rule rule) : rule(std::move(rule)) {}

  Abilities abilities() const override { return {.writes = true}; }
  Future<EngineState> state(Deadline) override {
    return ready_future(EngineState{.version = "", .served_model = "critic"});
  }
  Future<Written> write(WriteRequest request, Deadline) override {
    const std::lock_guard lock(mutex_);
    ++asked;
    return try_future([&] { return ready_future(rule(request)); });
  }

  Rule rule;
  int asked = 0;

 private:
  std::mutex mutex_;
};

// Its own question, and how long it may answer.
inline Written by_echo(const WriteRequest& request) {
  return {.text = request.text + "/" + std::to_string(request.max_new_tokens),
          .cut = request.max_new_tokens < 3,
          .tokens = 2};
}

}  // namespace retort::engines
