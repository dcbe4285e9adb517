// Watches that a server still serves the model that it served at the start.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/future.h"
#include "engines/contract/engine.h"

namespace retort::engines {

// The engine's answers at the start of a run, which it must give as long as the run goes on.
struct FirstNumbers {
  std::vector<double> given;         // of the watch's tokens, or their reward
  double tolerance = 1e-3;           // largest difference that is none; nats, or of rewards
  std::optional<std::string> words;  // of an engine that is asked in them
};
std::string to_json(const FirstNumbers& first);
FirstNumbers read_first_numbers(const std::string& json);  // kCorrupt

// Asks now and then for the log-probabilities of the same few tokens, or for their reward, or the
// same question in words, and compares them with the first answer: an address may be given to
// another model while a run goes on. Words may turn at a near tie beside other requests: they are
// another model's when they differ kOtherWords times in a row.
//
// Use: begin(), then look() again and again, at least as often as the interval.
// Cost: a question of kWatchTokens tokens an interval, or an answer of 32 in words; nothing for an
// engine that cannot be asked.
// Threads: one, which waits in begin() alone.
class ModelWatch {
 public:
  static constexpr int64_t kWatchTokens = 16;
  static constexpr int kOtherWords = 6;
  static WriteRequest words_question();  // what Asks::kWords asks
  enum class Asks { kLogProbs, kReward, kWords, kNothing };
  struct Options {
    Asks asks = Asks::kLogProbs;
    int64_t vocab_rows = 0;   // of tokens
    int64_t label = 0;        // of rewards
    double tolerance = 1e-3;  // largest difference that is none; nats, or of rewards
    std::chrono::milliseconds interval{10'000};
    std::chrono::milliseconds timeout{600'000};  // of one question
  };
  ModelWatch(std::shared_ptr<Engine> engine, Options options);

  // Asks for the first time. `earlier`: what a process before this one began with; its numbers and
  // its tolerance then count. Words are asked for until they are the first ones, or kOtherWords are
  // not. Returns what counts. Errors as look(), kTimeout.
  FirstNumbers begin(const std::optional<FirstNumbers>& earlier, Deadline deadline);
  // Takes the answer to the last question if it is there, and asks the next when it is due.
  // kInvalidArgument when the numbers are others than at the start; the engine's own error when it
  // could not answer, but not of one that came too late: behind many others it may have no turn.
  // Who is asked in words may also be away for a moment.
  void look();

 private:
  using Clock = std::chrono::steady_clock;
  // An answer; one of both.
  struct Seen {
    std::vector<double> numbers;
    std::string words;
  };
  bool can_be_asked() const;
  Future<Seen> ask(Deadline deadline) const;
  void compare(Seen now);
  void compare_numbers(std::vector<double> now);
  void compare_words(std::string now);

  std::shared_ptr<Engine> engine_;
  Options options_;
  ScoreRequest question_;
  FirstNumbers first_;
  std::optional<Future<Seen>> open_;
  int other_words_ = 0;  // answers in a row that are not the first one's
  Clock::time_point due_;
};

}  // namespace retort::engines
