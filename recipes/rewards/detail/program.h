// A program of the user's that scores: one JSON line for each question, one for each answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/process/line_program.h"
#include "base/units.h"
#include "recipes/rewards/detail/messages.h"
#include "recipes/rewards/detail/scorer.h"

namespace retort::rewards::detail {

// The protocol is in docs/rewards.md. Threads and the end of the program: those of LineProgram.
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

  // A score for each question, to which an `id` is added. After one of these errors the program is
  // killed and not started again.
  //
  // Errors: kTimeout; kPeerLost if it ended or closed a pipe; kCorrupt for what is no answer;
  //   kClosed if it failed before.
  Scores ask(const std::vector<Json>& questions, Late late = Late::kFails);
  Duration timeout() const { return timeout_; }
  // Kills it and fails with what it did wrong.
  [[noreturn]] void give_up(ErrorCode code, const std::string& what);

 private:
  struct Batch;
  void start();
  Batch send_batch(const std::vector<Json>& questions);
  void take(Batch& batch, const LineProgram::Heard& heard);
  void take_line(Batch& batch, const LineProgram::Line& line);
  bool begin_again(const Batch& batch);
  [[noreturn]] void lost(const Batch& batch);

  const std::string name_;
  const std::vector<std::string> argv_;
  const Duration timeout_;
  std::unique_ptr<LineProgram> program_;  // killed after a failure
  int64_t next_id_ = 0;
  bool has_answered_ = false;   // ever
  int64_t silent_batches_ = 0;  // in which nothing was answered, since the last answer
  int64_t unscored_ = 0;        // questions of all batches that were out of time
};

}  // namespace retort::rewards::detail
