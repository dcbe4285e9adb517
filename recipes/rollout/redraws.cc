#include "recipes/rollout/redraws.h"

#include <algorithm>
#include <string>

namespace retort::recipes {

Duration Redraws::pause_after(const Error& error, bool newer) {
  // The draw was given up for newer weights, with which the next one can begin at once.
  if (newer) {
    lost_ = 0;
    pause_ = Duration(0);
    return pause_;
  }

  // These weights are still the newest, so the draw was lost with its generator. A successor is
  // told them before it is asked, which takes a while.
  ++lost_;
  if (lost_ > kMax)
    throw Error(ErrorCode::kMismatch,
                "the samples of a step were drawn " + std::to_string(lost_) +
                    " times with the newest weights, and each time the generator said that these "
                    "are not its own; do its log and the student's name one version? " +
                    error.message())
        .with("step", step_);
  pause_ = std::min(2 * pause_ + kFirstPause, kLongestPause);
  return pause_;
}

}  // namespace retort::recipes
