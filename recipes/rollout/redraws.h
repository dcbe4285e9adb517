// How often, and how soon, the samples of a step are drawn again when a draw was given up.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/units.h"

namespace retort::recipes {

// Counts the draws of one step's samples that came to nothing. A draw with weights that are
// replaced by now had to be given up, so that the next one comes at once, and the count begins
// anew. One with weights that are still the newest was lost with its generator, which is told these
// weights before it is asked again: the next draw waits a little, longer each time. A generator is
// not lost that often in a row; where that goes on, something else is wrong.
class Redraws {
 public:
  // Beside the first draw, with the same weights.
  static constexpr int64_t kMax = 10;
  static constexpr Duration kFirstPause{100}, kLongestPause{10'000};

  explicit Redraws(int64_t step) : step_(step) {}

  // After a draw that `error` ended: how long to wait before the next one. `newer`: the weights
  // have been replaced since. kMismatch, with the error's words and the step, after kMax draws
  // beside the first.
  Duration pause_after(const Error& error, bool newer);

 private:
  const int64_t step_;
  int64_t lost_ = 0;  // draws in a row with the newest weights
  Duration pause_{0};
};

}  // namespace retort::recipes
