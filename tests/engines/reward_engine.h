// An engine that scores completions by a rule, or by what a test says.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "engines/contract/engine.h"

namespace retort::engines {

class RewardEngine final : public Engine {
 public:
  using Rule = std::function<double(const RewardRequest&)>;
  // `labels`: numbers that a completion gets.
  explicit RewardEngine(Rule rule, int64_t labels = 1) : labels(labels), rule_(std::move(rule)) {}

  Abilities abilities() const override { return {.rewards = labels}; }
  Future<EngineState> state(Deadline) override {
    Promise<EngineState> promise;
    promise.set_value({.version = "1", .served_model = "judge"});
    return promise.future();
  }
  Future<double> reward(RewardRequest request, Deadline deadline) override {
    const std::lock_guard lock(mutex_);
    deadlines.push_back(deadline);
    Promise<double> promise;
    promise.on_cancel([this] { ++cancelled; });
    held.push_back(promise);
    if (hold) return promise.future();
    try {
      promise.set_value(rule_(request));
    } catch (...) {
      promise.set_error(std::current_exception());
    }
    return promise.future();
  }

  const int64_t labels;
  bool hold = false;  // answers nothing: that is left to the test, by `held`
  std::vector<Promise<double>> held;
  std::vector<Deadline> deadlines;
  int cancelled = 0;

 private:
  std::mutex mutex_;
  Rule rule_;
};

// Says what it was asked: label, prompt and completion in one number.
inline double by_rule(const RewardRequest& request) {
  return static_cast<double>(request.label) * 1000 +
         static_cast<double>(request.prompt.size()) * 100 + request.completion.back();
}

}  // namespace retort::engines
