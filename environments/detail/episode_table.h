// The episodes that are open at a program, and the calls that wait for its answers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/future.h"
#include "base/units.h"
#include "environments/detail/protocol.h"

namespace retort::environments::detail {

// A result that is told to whoever waits for it once no lock is held, as that may ask again.
struct Completion {
  Promise<Reply> promise;
  Outcome<Reply> outcome;
};
using Completions = std::vector<Completion>;
void complete(Completions completions);
// One that failed.
Completion failed_call(Promise<Reply> promise, const Error& error);

// Episodes have numbers of their own on the wire, each used once: a caller may open one anew whose
// first try was given up, while the program still works on that.
//
//   opened -> a call waits -> answered -> ... -> closed: forgotten
//     |            '-> late, or no answer to it: given up, forgotten once the program closed it
//     '-> the program is gone: the next call says so, then it is forgotten
//
// Behind the answer to a close there may come that to an earlier call, which is dropped.
//
// Threads: one at a time; its owner has a lock.
class EpisodeTable {
 public:
  using Clock = Deadline::Clock;
  // `name`: the environment's, for errors. At most `episodes` at a time, besides those given up.
  EpisodeTable(std::string name, int64_t episodes);

  // The number that the next episode gets. kInvalidArgument if the caller has it open already,
  // kResourceExhausted if there is no place for one more.
  uint64_t next_number(uint64_t caller) const;
  // That of an open one. The error of the program's end, once, if it had the episode;
  // kInvalidArgument if it is not open, or waits for an answer and `verb` is not kClose.
  uint64_t number_of(uint64_t caller, Verb verb);

  // A call whose line is sent; with kOpen the episode begins. A step that still waits ends with
  // kCancelled. Without a deadline it waits until start_clocks().
  Future<Reply> wait(uint64_t caller, uint64_t number, Verb verb, std::optional<Duration> timeout,
                     Completions& done);
  // Nobody asks about this episode any more. What the program is sent.
  std::string give_up(uint64_t number);
  // The program is ready: the time of all that waits begins.
  void start_clocks(Duration timeout);

  // What came of a line: kCorrupt if nobody asked for it.
  struct Taken {
    bool opened = false;  // an episode, by an answer that is right
    std::string lines;    // to send: episodes that are closed as their answers were wrong
  };
  // `wrong` makes an error of that line.
  Taken take(AnswerLine line, const std::function<Error(ErrorCode, std::string)>& wrong,
             Completions& done);

  // Gives up what is late; `late` makes the error. The lines to send, which close those episodes.
  // `earliest_call`: when the first of them was asked.
  std::string expire(const std::function<Error(std::string)>& late, Completions& done,
                     std::optional<Clock::time_point>& earliest_call);
  std::optional<Deadline> next_deadline() const;

  // The program is gone: calls that wait end with this error, episodes between calls will.
  void lose(const Error& error, Completions& done);
  // All calls end with this error, and no episode is left.
  void end(const Error& error, Completions& done);

  bool has_waiting() const;
  // Given up, and not closed by the program yet.
  int64_t num_given_up() const;

 private:
  struct Waiting {
    Verb verb;
    Promise<Reply> promise;
    Clock::time_point since;
    std::optional<Deadline> deadline;
  };
  struct Episode {
    uint64_t caller = 0;
    std::optional<Waiting> waiting;
    std::vector<Verb> ignored;  // calls that may still be answered, and nobody waits for it
    bool given_up = false;
    std::optional<Error> lost;
  };
  using Episodes = std::map<uint64_t, Episode>;

  std::string give_up(Episodes::iterator at);
  void forget(Episodes::iterator at);
  void forget_closed(Episodes::iterator at);
  bool take_ignored(Episodes::iterator at, const AnswerLine& line);
  bool take_owed(const AnswerLine& line, Taken& taken);
  std::string place_of(const AnswerLine& line) const;

  std::string name_;
  int64_t max_episodes_;
  uint64_t next_ = 1;
  Episodes episodes_;                     // by their numbers on the wire
  std::map<uint64_t, uint64_t> numbers_;  // the callers' -> those; of none that is given up
  // Calls of episodes that are forgotten, by the wire's numbers: they may still be answered.
  std::map<uint64_t, std::vector<Verb>> owed_;
};

}  // namespace retort::environments::detail
