// Whether a server still serves the model that it served at the start.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/future.h"
#include "engines/engine.h"

namespace retort::engines {

// What an engine gave at the start of a run, which it must give as long as the run goes on.
struct FirstNumbers {
  std::vector<float> given;  // of the watch's tokens
  double tolerance = 1e-3;   // largest difference that is none, nats
};
std::string to_json(const FirstNumbers& first);
FirstNumbers read_first_numbers(const std::string& json);  // kCorrupt

// Asks now and then for the log-probabilities of the same few tokens, and compares them with the
// first answer: an address may be given to another model while a run goes on.
//
// Use: begin(), then look() again and again, at least as often as the interval.
// Cost: a score() of kWatchTokens tokens an interval; nothing for an engine that cannot score.
// Threads: one, which waits in begin() alone.
class ModelWatch {
 public:
  static constexpr int64_t kWatchTokens = 16;
  struct Options {
    int64_t vocab_rows = 0;
    double tolerance = 1e-3;  // largest difference that is none, nats
    std::chrono::milliseconds interval{10'000};
    std::chrono::milliseconds timeout{600'000};  // of one question
  };
  ModelWatch(std::shared_ptr<Engine> engine, Options options);

  // Asks for the first time. `earlier`: what a process before this one began with; its numbers and
  // its tolerance then count. Returns what counts. Errors as look(), kTimeout.
  FirstNumbers begin(const std::optional<FirstNumbers>& earlier, Deadline deadline);
  // Takes the answer to the last question if it is there, and asks the next when it is due.
  // kMismatch when the numbers are others than at the start; the engine's own error when it could
  // not answer.
  void look();

 private:
  using Clock = std::chrono::steady_clock;
  void compare(const Scored& now);

  std::shared_ptr<Engine> engine_;
  Options options_;
  ScoreRequest question_;
  FirstNumbers first_;
  std::optional<Future<Scored>> open_;
  Clock::time_point due_;
};

}  // namespace retort::engines
