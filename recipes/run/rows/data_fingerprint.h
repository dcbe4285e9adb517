// The fingerprint of a run's rows, which is made beside its first steps where that takes long.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "base/units.h"
#include "parallel/world.h"
#include "recipes/data/row_set.h"
#include "recipes/run/checkpoints/loop_state.h"

namespace retort::recipes {

// RowSet::fingerprint() reads all data. The ranks compare theirs as soon as all of them have it:
// the run ends where one has read other rows, and no checkpoint is written before that is known. A
// run that goes on from a checkpoint compares before its first step, so it waits.
//
// Use, on every rank:
//     DataFingerprint digest(work->rows(), world);
//     digest.wait_before_training(most);     // or finish(), where a checkpoint is compared
//     ... after each step: digest.after_step();
//     ... before each checkpoint: digest.complete(state);
// Collectives: one all-reduce in each of the three (in finish(): every few seconds) until the
//   fingerprints were compared, and one all-gather then; none in a world of one rank.
// Errors: kMismatch naming the ranks with other rows, and what JsonlFile::fingerprint throws, on
//   every rank.
// Threads: compute; the hashes are made on one of its own, at a low priority once training waits
//   for them no more.
class DataFingerprint {
 public:
  // How long the first step waits for it in any case: 1.5 GB.
  static constexpr Duration kLeastWait{1'000};

  // Begins, and waits for nothing.
  DataFingerprint(const data::RowSet& rows, parallel::World& world);
  // Ends the thread: a fingerprint that is not made by then is not made.
  ~DataFingerprint();
  DataFingerprint(const DataFingerprint&) = delete;
  DataFingerprint& operator=(const DataFingerprint&) = delete;

  void wait_before_training(Duration most);
  // Waits as long as it takes, which the log says now and then; no collective takes longer than a
  // few seconds.
  void finish();
  void after_step();
  // Finishes as finish() does, then fills in what `state` says of the rows.
  void complete(LoopState& state);

 private:
  bool is_made(Duration limit) const;
  // Sets the nice value of the thread that makes the fingerprint.
  void set_nice(int nice) const;
  // Compares the fingerprints once every rank has its own.
  void compare_if_made();

  const data::RowSet& rows_;
  parallel::World& world_;
  std::atomic<bool> stop_ = false;
  std::atomic<pid_t> thread_id_ = 0;
  std::promise<std::string> promise_;
  std::shared_future<std::string> made_;
  bool compared_ = false;
  std::thread thread_;
};

}  // namespace retort::recipes
