#include "recipes/document/rejection_sampling_options.h"

#include <string>

#include "base/error.h"

namespace retort::recipes {

void RejectionSamplingOptions::validate() const {
  const auto require = [](bool good, const std::string& message) {
    if (!good) throw Error(ErrorCode::kInvalidArgument, message);
  };
  require(rounds >= 1, "rounds must be at least 1");
  require(prompts_per_round >= 0, "prompts_per_round must be 0 (all) or above");
  require(top_n >= 1, "top_n must be at least 1");
  require(select == Select::kBestOfN || top_n == 1,
          "top_n has no effect without select: best_of_n");
  require(select != Select::kThreshold || threshold,
          "threshold is missing; select: threshold needs the lowest reward to keep");
  require(select != Select::kTopFraction || !threshold,
          "threshold has no effect with select: top_fraction");
  require(select == Select::kTopFraction || !top_fraction,
          "top_fraction has no effect without select: top_fraction");
  require(
      select != Select::kTopFraction || (top_fraction && *top_fraction > 0 && *top_fraction <= 1),
      "top_fraction must be given, in (0, 1], with select: top_fraction");
}

}  // namespace retort::recipes
