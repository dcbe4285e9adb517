// A program of the user's that scores: one JSON line for each question, one for each answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/process/child.h"
#include "base/units.h"
#include "recipes/rewards/detail/messages.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {

// The protocol is in docs/rewards.md. One thread. The destructor closes the program's stdin; if it
// has not ended two seconds later, its process group is killed.
class Program {
 public:
  // Starts it. `name` is the reward's, for errors; `timeout` is for a whole batch. kInvalidArgument
  // for a program that cannot be started.
  Program(std::string name, std::vector<std::string> argv, Duration timeout);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // A batch that is not answered in time is an error, or those questions that were not answered
  // have no score. The program is then killed and started again, as it may be inside one of them
  // for ever; it is an error nevertheless if it has never answered anything, or nothing in three
  // batches that follow each other.
  enum class Late { kFails, kUnscored };

  // A score for each question, to which an `id` is added. After an error the program is killed and
  // not started again.
  //
  // Errors: kTimeout; kPeerLost if it ended or closed a pipe; kCorrupt for what is no answer;
  //   kClosed if it failed before.
  Scores ask(const std::vector<Json>& questions, Late late = Late::kFails);
  Duration timeout() const { return timeout_; }
  // Kills it and fails with what it did wrong.
  [[noreturn]] void give_up(ErrorCode code, const std::string& what);

 private:
  struct Batch;
  Batch start_batch(const std::vector<Json>& questions);
  bool wait(const Batch& batch, const Deadline& deadline);
  void send(Batch& batch);
  bool read_answers(Batch& batch);  // false if there was nothing to read
  void read_stderr();
  void take_line(Batch& batch, std::string_view line);
  bool begin_again(const Batch& batch);
  [[noreturn]] void lost(const Batch& batch, const std::string& what);

  std::string name_;
  std::vector<std::string> argv_;
  Duration timeout_;
  std::unique_ptr<Child> child_;  // null after a failure
  bool deaf_ = false;             // whether it has closed its stdin
  int64_t next_id_ = 0;
  bool has_answered_ = false;   // ever
  int64_t silent_batches_ = 0;  // in which nothing was answered, since the last answer
  int64_t unscored_ = 0;        // questions of all batches that were out of time
  std::string pending_;         // of stdout: a line without its end
  std::string stderr_;          // its last bytes
};

}  // namespace retort::rewards::detail
