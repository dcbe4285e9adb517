// train.checkpoint_command: a program of the user's that is given each checkpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"

namespace retort::recipes {

// Runs the program on a thread of its own, one at a time, with the checkpoint's folder as its last
// argument, while training goes on.
//
// A program that is slower than the run gets the newest checkpoint when it is done: at most one
// waits for it, and an older one that waits is passed over, which is told.
// Failures (another exit code than 0, no end within `timeout`) are told and change nothing of the
// run.
// Threads: one uses it, the compute thread; none of its calls but finish() waits.
class CheckpointCommand {
 public:
  struct Options {
    std::vector<std::string> argv;
    Duration timeout{600'000};  // of one checkpoint
  };
  // kInvalidArgument if PATH has no such program.
  explicit CheckpointCommand(Options options);
  // Kills what runs.
  ~CheckpointCommand();
  CheckpointCommand(const CheckpointCommand&) = delete;

  void give(const std::filesystem::path& checkpoint);
  // The folders that the program has or is to get, which must stay.
  std::vector<std::filesystem::path> in_use() const;
  // What is to be told since the last call: failures, and checkpoints that were passed over.
  std::vector<std::string> take_messages();
  // Waits until the program has had every checkpoint, each for its time at most.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace retort::recipes
