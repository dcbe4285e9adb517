// The look at all rows of a run's data (recipes/data/row_scan.h), as the student's ranks see it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "parallel/world.h"
#include "recipes/data/row_scan.h"
#include "recipes/run/rank/rank_context.h"

namespace retort::recipes {

// The first rank looks at the rows, all ranks hear of it. With data.on_bad_sample: error bad rows
// end the run: before its first step, or where they are found later, behind the step that is done
// then, with a checkpoint. With skip their number is told.
//
// Use, on every rank: wait_before_training(), then must_end() after each step; where the loop has
// ended early, refuse_if_bad().
// Threads: compute.
class RowLook {
 public:
  // How long the first step waits for it; then it goes on beside training. With what
  // DataFingerprint waits for the same data it is 5 s.
  static constexpr Duration kMostWait{4'000};

  // Begins, and waits for nothing: the files are opened beside what follows.
  RowLook(const RankContext& context, parallel::World& world);

  // Waits at most so long. Collectives: one vote. Errors: kInvalidArgument naming the bad rows, on
  // every rank.
  void wait_before_training(Duration most = kMostWait);
  // Whether this rank is the one that looks, until end().
  bool looks() const { return scan_ != nullptr; }
  // Whether it has found rows that end the run, since the last call that said what it found; false
  // on all ranks but the first.
  bool must_end(int64_t step);
  // Collectives: one vote. Errors as wait_before_training().
  void refuse_if_bad();
  // Says how far it came, and ends it.
  void end();

 private:
  void tell(const std::string& state, int64_t step);
  bool refuses() const;

  const RankContext& context_;
  parallel::World& world_;
  std::unique_ptr<data::RowScan> scan_;  // null on the other ranks, and once it is over
  bool told_ = false;
  bool bad_ = false;
};

}  // namespace retort::recipes
